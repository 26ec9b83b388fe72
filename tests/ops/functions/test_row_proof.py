"""The proof that a function works row by row, compared with its results."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer import place_guard
from placer.ops.functions.description import describe

N = 5
W = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
K = np.random.default_rng(2).normal(size=(3, 4, 4)).astype(np.float32)
IDS = np.array([2, 0, 1])
Step = Callable[[jax.Array, jax.Array], jax.Array]


@jax.custom_jvp
def bent(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


@bent.defjvp
def _bent_jvp(primals: Any, tangents: Any) -> Any:
    return jnp.sin(primals[0]), tangents[0] * jnp.cos(primals[0])


@jax.custom_jvp
def crooked(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


@crooked.defjvp
def _crooked_jvp(primals: Any, tangents: Any) -> Any:
    return jnp.sin(primals[0]), tangents[0] * jnp.cos(primals[0]).mean()


@jax.custom_vjp
def ruled(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


ruled.defvjp(lambda x: (jnp.sin(x), x), lambda x, dy: (dy / jnp.linalg.norm(dy),))


def scanned(x: jax.Array, w: jax.Array) -> jax.Array:
    def step(h: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(h[:, None] + now[:, None] * w[0, 0])[:, 0]
        return h, h

    last, states = jax.lax.scan(step, jnp.zeros(len(x)), x.T)
    return states.T + last[:, None]


def attended(x: jax.Array, w: jax.Array) -> jax.Array:
    lines = x.reshape(-1, 2, 2)
    scores = jnp.einsum("nqd,nkd->nqk", lines, lines)
    mask = jnp.tril(jnp.ones((2, 2), bool))
    seen = jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ lines
    return seen.reshape(-1, 4)


def convolved(x: jax.Array, w: jax.Array) -> jax.Array:
    image = jnp.stack([x, x @ w], 1)
    kernel = jnp.asarray(K[:, :2, :2])
    y = jax.lax.conv_general_dilated(
        image, kernel.transpose(2, 1, 0), (1,), "SAME",
        dimension_numbers=("NCH", "OIH", "NCH"),
    )  # fmt: skip
    return y.sum(1)


def pooled(x: jax.Array, w: jax.Array) -> jax.Array:
    y = flax.linen.max_pool(x[..., None], (2,), strides=(1,), padding="SAME")
    return flax.linen.avg_pool(y, (2,), strides=(1,), padding="SAME")[..., 0]


def looped(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1] @ w)), (0, x)
    )[1]


def branched(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.cond(w.sum() > 0, lambda x: jnp.sin(x), lambda x: 2 * x, x)


BY_ROWS: dict[str, Step] = {
    "bits of numbers": lambda x, w: jax.lax.bitcast_convert_type(x, jnp.int32) % 7,
    "dense": lambda x, w: x @ w,
    "dense from the left": lambda x, w: (w @ x.T).T,
    "activation": lambda x, w: jax.nn.gelu(x) + jax.nn.relu(x) * jax.nn.silu(x),
    "norm": lambda x, w: jax.nn.standardize(x) * w[0],
    "softmax": lambda x, w: jax.nn.softmax(x) + jax.nn.log_softmax(x),
    "attention": attended,
    "convolution": convolved,
    "pooling": pooled,
    "scan": scanned,
    "loop": looped,
    "branch": branched,
    "jit": lambda x, w: jax.jit(jnp.tanh)(x),
    "checkpoint": lambda x, w: jax.checkpoint(lambda x: jnp.sin(x @ w))(x),
    "vmap": lambda x, w: jax.vmap(lambda row: jnp.outer(row, row) @ row)(x),
    "blocks of rows": lambda x, w: (x.reshape(-1, 2) @ w[:2, :2]).reshape(-1, 4),
    "lookup": lambda x, w: w[jnp.abs(x[:, 0]).astype(int) % 4],
    "lookup within a row": lambda x, w: jnp.take_along_axis(
        x, jnp.abs(x).astype(int) % 4, axis=1
    ),
    "chosen columns": lambda x, w: x[:, jnp.asarray([1, 1, 0, 3])],
    "set a column": lambda x, w: jnp.asarray(x).at[:, 1].set(x[:, 2]).at[:, 0].add(1.0),
    "sort": lambda x, w: jnp.sort(x, axis=1),
    "greatest": lambda x, w: jax.lax.top_k(x, 4)[0] + jnp.argmax(x, 1)[:, None],
    "running sum": lambda x, w: jnp.cumsum(x, axis=1) + jax.lax.cummax(x, axis=1),
    "flip, roll, pad": lambda x, w: jnp.roll(jnp.flip(x, 1), 1, 1)
    + jnp.pad(x, ((0, 0), (1, 0)))[:, :4],
    "parts": lambda x, w: jnp.concatenate(jnp.split(x, 2, axis=1)[::-1], axis=1),
    "tile, stack": lambda x, w: jnp.tile(x, (1, 2)).reshape(-1, 2, 4).sum(1)
    + jnp.stack(jnp.unstack(jnp.stack([x, x], 1), axis=1), 1)[:, 1]
    + jnp.tile(w[:1], (len(x), 1)),
    "positions": lambda x, w: x + jnp.arange(4) + jnp.zeros(x.shape),
    "dynamic": lambda x, w: jax.lax.dynamic_update_slice_in_dim(
        x, jax.lax.dynamic_slice_in_dim(x, jnp.argmax(w[0]) % 3, 2, 1), 1, 1
    ),
    "filter of frequencies": lambda x, w: jnp.fft.irfft(jnp.fft.rfft(x) * w[0, :3], 4),
    "complex numbers": lambda x, w: jnp.abs((x + 1j * (x @ w)) * jnp.exp(1j * w[0])),
    "own derivative": lambda x, w: bent(x),
    "gradient inside": lambda x, w: jax.grad(lambda x: jnp.sin(x @ w).sum())(x),
}  # fmt: skip
OF_PARAMETERS: dict[str, Step] = {
    "QR of a parameter": lambda x, w: x @ jnp.linalg.qr(w)[0],
    "eigenvectors of a parameter": lambda x, w: (
        x @ jnp.abs(jnp.linalg.eigh(w @ w.T)[1])
    ),
    "singular values of a parameter": lambda x, w: x * jnp.linalg.svd(w)[1],
    "determinant of a parameter": lambda x, w: x * jnp.linalg.slogdet(w)[1],
    "Cholesky factor of a parameter": lambda x, w: x @ jnp.linalg.cholesky(w @ w.T),
    "solution for a parameter": lambda x, w: x @ jnp.linalg.solve(w, w.T),
}
"""Functions with primitives that have no rule, on parameters alone."""
MIXED: dict[str, Step] = {
    "mean of the batch": lambda x, w: x - x.mean(0),
    "number of rows": lambda x, w: x / x.shape[0],
    "parity of the batch": lambda x, w: x - x.mean(0) * (len(x) % 2),
    "another way for odd batches": lambda x, w: (
        x - jax.nn.softmax(w @ w) @ x.mean(0) if len(x) % 2 else x @ w
    ),
    "other operands for some batches": lambda x, w: (
        jnp.subtract(*(jnp.sin(x), jnp.cos(x))[:: 1 if len(x) % 3 == 2 else -1])
    ),
    "number of rows in a function of elements": lambda x, w: (
        jnp.asarray(x).at[:, 0].apply(lambda value: value * len(x))
    ),
    "number of rows in an array": lambda x, w: x * jnp.full(4, len(x), x.dtype),
    "number of the row": lambda x, w: x + jnp.arange(len(x))[:, None],
    "rows among each other": lambda x, w: jax.nn.softmax(x @ x.T) @ x,
    "turned": lambda x, w: jnp.flip(x, 0),
    "rolled": lambda x, w: jnp.roll(x, 1, 0),
    "first row": lambda x, w: x + x[:1],
    "running sum": lambda x, w: jnp.cumsum(x, 0),
    "sorted rows": lambda x, w: jnp.sort(x, 0),
    "greatest of all": lambda x, w: x / jnp.abs(x).max(),
    "scan over rows": lambda x, w: jax.lax.scan(
        lambda h, row: (h + row, h), jnp.zeros(4), x
    )[1],
    "a branch of all": lambda x, w: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
    "until all are done": lambda x, w: jax.lax.while_loop(
        lambda x: jnp.abs(x).max() > 1, lambda x: x / 2, x
    ),
    "rows split": lambda x, w: jnp.tile(x[: len(x) // 2], (2, 1)),
    "rows interleaved": lambda x, w: x.reshape(2, -1, 4).swapaxes(0, 1).reshape(-1, 4),
    "columns as rows": lambda x, w: x.T.reshape(-1, 4),
    "a rule that mixes": lambda x, w: crooked(x),
    "a rule that is not known": lambda x, w: ruled(x),
    "a rule of a parameter that is not known": lambda x, w: x @ ruled(w),
    "a callback on a parameter": lambda x, w: (
        x @ jax.pure_callback(np.sin, jax.ShapeDtypeStruct(w.shape, w.dtype), w)
    ),
    "frequencies of the batch": lambda x, w: jnp.fft.fft2(x).real,
    "gradient of all": lambda x, w: jax.grad(lambda x: (x @ w).sum() ** 2)(x),
}  # fmt: skip
NO_PROOF: dict[str, Step] = {
    "loop over rows": lambda x, w: jax.lax.map(jnp.sin, x),
    "Cholesky factor of each row": lambda x, w: jax.vmap(
        lambda row: jnp.linalg.cholesky(jnp.outer(row, row) + jnp.eye(4)).sum(0)
    )(x),
    "a loop that ends for each row": lambda x, w: jax.vmap(
        lambda row: jax.lax.while_loop(
            lambda v: jnp.abs(v).max() > 1, lambda v: v / 2, row
        )
    )(x),
    "an own index of each row": lambda x, w: (
        jnp.zeros_like(x)
        .at[jnp.arange(len(x)), jnp.abs(x[:, 0]).astype(int) % 4]
        .set(1.0)
    ),
    "a callback": lambda x, w: jax.pure_callback(
        np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x
    ),
}
"""Functions that work row by row, for which docs/reference/python.md says that no proof exists."""
NOT_SEEN = {
    *("a rule that mixes", "a rule that is not known"),
    *("a rule of a parameter that is not known", "a callback on a parameter"),
}
"""Functions whose forward pass works row by row, but whose backward pass does not, or may
not."""


def is_proven(fn: Step) -> bool:
    args = json.dumps([{"in": "float32[batch, 4]"}, {"param": "float32[4, 4]"}])
    return describe(fn, args, ["x", "w"], "y", rows=None, wide=False).is_by_rows


def differs(fn: Step) -> float:
    """Return the largest difference of a row from its result in another batch.

    The other batches are the row by itself, and all rows in another order.
    """
    x = np.random.default_rng(4).normal(size=(N, 4)).astype(np.float32)
    order = np.array([3, 0, 4, 1, 2])
    whole = np.asarray(fn(x, W))
    alone = np.concatenate([fn(x[i : i + 1], W) for i in range(N)])
    turned = np.asarray(fn(x[order], W))
    return max(np.abs(whole - alone).max(), np.abs(whole[order] - turned).max())


@pytest.mark.parametrize("name", [*BY_ROWS, *OF_PARAMETERS])
def test_a_function_that_works_row_by_row_is_proven(name: str) -> None:
    fn = (BY_ROWS | OF_PARAMETERS)[name]
    assert is_proven(fn)
    assert differs(fn) < 1e-4


@pytest.mark.parametrize("name", MIXED)
def test_a_function_that_mixes_rows_is_not_proven(name: str) -> None:
    assert not is_proven(MIXED[name])
    if name not in NOT_SEEN and name not in ("rows split", "rows interleaved"):
        assert differs(MIXED[name]) > 1e-3  # the function really mixes rows


@pytest.mark.parametrize("name", NO_PROOF)
def test_what_the_docs_call_whole_is_not_proven(name: str) -> None:
    assert not is_proven(NO_PROOF[name])
    assert differs(NO_PROOF[name]) < 1e-4


STEPS = st.lists(
    st.one_of(
        st.sampled_from([*BY_ROWS]).map(lambda name: ("rows", name)),
        st.sampled_from([*MIXED]).map(lambda name: ("mixed", name)),
    ),
    min_size=1,
    max_size=4,
)


def composed(steps: list[tuple[str, str]], ahead: int) -> Step:
    """Apply the steps in order; add the input to the result of step `ahead`."""

    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        start = x = jnp.asarray(x)
        for i, (kind, name) in enumerate(steps):
            x = (BY_ROWS if kind == "rows" else MIXED)[name](jnp.tanh(x), w)
            if i == ahead:
                x = x + start
        return x

    return fn


@settings(max_examples=25, deadline=None, derandomize=True)
@given(STEPS, st.integers(0, 3))
def test_a_proven_function_works_row_by_row(
    steps: list[tuple[str, str]], ahead: int
) -> None:
    fn = composed(steps, ahead)
    proven = is_proven(fn)
    assert proven == all(kind == "rows" for kind, _ in steps)
    if proven:
        assert differs(fn) < 1e-3


def test_results_of_each_place_have_rows_or_do_not_depend_on_the_batch() -> None:
    def with_penalty(x: jax.Array, w: jax.Array) -> Any:
        with place_guard("/node:worker:0"):
            h = jnp.tanh(x @ w)
        with place_guard("/node:worker:1"):
            return h @ w, (w**2).sum()

    def with_loss(x: jax.Array, w: jax.Array) -> Any:
        with place_guard("/node:worker:0"):
            h = jnp.tanh(x @ w)
        with place_guard("/node:worker:1"):
            return h @ w, (h**2).mean()

    def across(x: jax.Array, w: jax.Array) -> Any:
        return (x @ w).T

    assert is_proven(with_penalty)
    assert not is_proven(with_loss)
    assert not is_proven(across)
