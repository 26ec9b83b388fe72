"""Gradients of half floats that are sums over many rows are computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from support import compiled_ops as ops

ROWS = 2048
IDS = np.arange(ROWS, dtype=np.int32) % 2
SPREAD = np.stack([IDS, 1 - IDS, IDS], 1)

SUMS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    # a function of rows and a parameter, and the shapes of both
    "fc": (lambda x, b: ops.fc(x, np.eye(3, dtype=x.dtype), b), (ROWS, 3), (3,)),
    "conv2d": (
        lambda x, b: ops.conv2d(x, np.ones((1, 1, 3, 3), x.dtype), b),
        (ROWS // 4, 2, 2, 3),
        (3,),
    ),
    "layer_norm": (
        lambda x, b: ops.layer_norm(x, np.ones(3, x.dtype), b),
        (ROWS, 3),
        (3,),
    ),
    "group_norm": (
        lambda x, b: ops.group_norm(x, np.ones(4, x.dtype), b, groups=2),
        (ROWS // 4, 2, 2, 4),
        (4,),
    ),
    "add": (ops.add, (ROWS, 3), (3,)),
    "add to a column": (ops.add, (ROWS, 3), (1, 3)),
    "sub": (ops.sub, (ROWS, 3), (3,)),
    "where": (lambda x, b: ops.where(np.ones((), bool), b, x), (ROWS, 3), (3,)),
    "tile": (lambda x, b: ops.tile(b, repeats=(ROWS, 1)), (ROWS, 3), (3,)),
    "embedding": (lambda x, w: ops.embedding(IDS, w), (ROWS, 3), (2, 3)),
    "weighted sums of an embedding": (
        lambda x, w: ops.embedding(
            SPREAD, SPREAD.astype("float32"), w, combiner="mean", padding=0
        ),
        (ROWS, 3),
        (2, 3),
    ),
    "gather": (lambda x, w: ops.gather(w, IDS), (ROWS, 3), (2, 3)),
    "take_along_axis": (
        lambda x, w: ops.take_along_axis(w, SPREAD, axis=0),
        (ROWS, 3),
        (2, 3),
    ),
    "simple_rnn": (
        lambda x, b: ops.simple_rnn(
            x, np.eye(3, dtype=x.dtype), np.zeros((3, 3), x.dtype), b, activation="none"
        )[0],
        (ROWS // 4, 4, 3),
        (3,),
    ),
}


def gradient(fn: Callable[..., Any], x: Any, b: Any, dy: Any) -> Any:
    """Return the parameter's gradient, in the dtype of the arguments."""

    def parameter_gradient(b: Any, dy: Any) -> Any:
        return jax.vjp(lambda b: fn(x, b), b)[1](dy)[0]

    return jax.jit(parameter_gradient)(b, dy)


def check_rounded_once(actual: Any, exact: Any) -> None:
    """Assert equality within half a unit in the last place and float32's own error."""
    eps = float(ml_dtypes.finfo(actual.dtype).eps)
    np.testing.assert_allclose(
        np.asarray(actual, np.float64), exact, rtol=eps / 2 + 1e-4, atol=1e-2
    )


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("name", SUMS)
def test_a_gradient_is_summed_in_float32(name: str, dtype: Any) -> None:
    fn, shape, parameter = SUMS[name]
    rng = np.random.default_rng(3)
    b = jnp.zeros(parameter, dtype)
    x = jnp.asarray(rng.normal(size=shape), dtype)
    out = jax.eval_shape(lambda x, b: fn(x, b), x, b)
    dy = jnp.asarray(0.5 + rng.random(out.shape), dtype)
    wide = [a.astype(jnp.float32) for a in (x, b, dy)]
    check_rounded_once(gradient(fn, x, b, dy), gradient(fn, *wide))


@pytest.mark.parametrize("kind", ["nce_loss", "sampled_softmax_loss"])
def test_gradients_of_classes_that_are_drawn_often_are_summed_in_float32(
    kind: str,
) -> None:
    rng = np.random.default_rng(3)
    sampled = np.ones((ROWS, 2), np.int32)
    x = jnp.asarray(1 + rng.random((ROWS, 2)), jnp.bfloat16)
    w = jnp.zeros((3, 2), jnp.bfloat16), jnp.zeros(3, jnp.bfloat16)

    def gradients(x: Any, w: Any, b: Any) -> Any:
        loss = getattr(ops, kind)
        label = np.zeros(ROWS, np.int32)
        return jax.grad(
            lambda w: loss(
                x, *w, label, sampled, remove_accidental_hits=False, reduce="sum"
            )
        )((w, b))

    actual = jax.jit(gradients)(x, *w)
    expected = jax.jit(gradients)(*(a.astype(jnp.float32) for a in (x, *w)))
    for got, want in zip(actual, expected, strict=True):
        # The contribution of each row is rounded to a half float
        np.testing.assert_allclose(got.astype(np.float32), want, rtol=8e-3, atol=1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_several_uses_are_rounded_once(dtype: str) -> None:
    eps = float(ml_dtypes.finfo(dtype).eps)
    parts = [jnp.full(3, value, dtype) for value in (1.0, eps / 2, eps / 2)]
    actual = ops.accumulate(*parts)
    assert actual.dtype == dtype
    assert (actual.astype(np.float32) == 1 + eps).all()
