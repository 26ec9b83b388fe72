"""Run a region as a node program does: for any number of rows, forward and backward."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.regions import arguments_text

from placer import ops, place_guard
from placer.errors import PlacerError

ARGS = arguments_text("float32[4, 3]", "float32[batch, 4]")
W = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
TRACED: list[int] = []


def apply(w: jax.Array, x: jax.Array) -> jax.Array:
    TRACED.append(len(x))
    with place_guard("/node:worker:0"):
        y = jnp.sin(x @ w)
    with place_guard("/node:worker:1"):
        return y @ w.T


def position(rows: int) -> jax.Array:
    return jnp.zeros((rows, 2), jnp.uint32)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_region_accepts_any_number_of_rows(rows: int) -> None:
    x = np.ones((rows, 4), np.float32)
    how = {"fn": apply, "args": ARGS, "batch": "rows", "saves": (0, 1)}
    results, residuals = ops.call.forward(x, W, position(rows), **how)
    np.testing.assert_allclose(results, np.sin(x @ W), rtol=1e-5)
    dx, dw, _ = ops.call.backward(residuals, x, W, jnp.ones_like(results))
    np.testing.assert_allclose(dx, np.cos(x @ W) @ W.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dw, x.T @ np.cos(x @ W), rtol=1e-5, atol=1e-6)


def test_a_function_is_traced_once_for_a_number_of_rows() -> None:
    x = jnp.ones((7, 4), jnp.float32)
    TRACED.clear()
    y = ops.call(x, W, position(7), fn=apply, args=ARGS)
    ops.call(W, y, position(7), fn=apply, args=ARGS, region=1)
    ops.call(x, W, position(7), fn=apply, args=ARGS)
    assert TRACED == [7]


def fickle(w: jax.Array, x: jax.Array) -> jax.Array:
    if len(x) == 3:
        return x @ w
    return apply(w, x) if len(x) != 2 else apply(w, x.T @ x[:, :2].T @ w.T)


def test_a_function_that_differs_between_numbers_of_rows_is_an_error() -> None:
    with pytest.raises(PlacerError, match="fickle has no region 1 for 3 rows, only 1"):
        ops.call(W, W, position(3), fn=fickle, args=ARGS, region=1)
    with pytest.raises(
        PlacerError, match=r"takes float32\[3, 4\], float32\[4, 3\], not"
    ):
        ops.call(W, W, position(3), fn=fickle, args=ARGS)
