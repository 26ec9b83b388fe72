"""Random numbers of rows: each way to draw them gives a row the same numbers for any rows."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.marks import slow_but

from placer.errors import PlacerError
from placer.ops.functions import function, trace
from placer.ops.functions.cut import ROW_NUMBERS, STEP_KEY
from placer.ops.functions.fingerprint import fingerprint
from placer.ops.functions.function import trace_function
from placer.ops.functions.mode import TRAINING, Mode
from placer.ops.functions.row_proof import is_by_rows
from placer.ops.functions.run_region import fingerprint_of, run_region
from placer.ops.special.call_jax import call

ARGS = json.dumps([{"in": "float32[batch, 6]"}])
ROWS = 7
BY_ROWS = Mode(training=True, by_rows=True)


def dropped(x: Any, key: Any) -> Any:
    first, second = jax.random.split(key)
    kept = jax.random.bernoulli(first, 0.7, x.shape)
    return jnp.where(kept, x / 0.7, 0) + jax.random.normal(second, (6,))


def in_a_scan(x: Any, key: Any) -> Any:
    def step(carry: Any, _: Any) -> Any:
        h, key = carry
        key, now = jax.random.split(key)
        return (h + jax.random.normal(now, h.shape), key), None

    return jax.lax.scan(step, (x, key), None, length=3)[0][0]


def in_a_loop(x: Any, key: Any) -> Any:
    def step(i: Any, h: Any) -> Any:
        return h + jax.random.normal(jax.random.fold_in(key, i), h.shape)

    return jax.lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1, step(*c)), (0, x)
    )[1]


def in_a_branch(x: Any, key: Any) -> Any:
    noisy = jax.random.uniform(key) < 2
    return jax.lax.cond(noisy, lambda: x + jax.random.normal(key, x.shape), lambda: x)


def in_a_checkpoint(x: Any, key: Any) -> Any:
    return jax.checkpoint(lambda x: x * jax.random.uniform(key, x.shape))(x)


def several_per_row(x: Any, key: Any) -> Any:
    return x * jax.random.uniform(key, (x.shape[0] * 2, 3)).reshape(x.shape)


def keys_of_rows(x: Any, key: Any) -> Any:
    keys = jax.random.split(key, len(x))
    return jax.vmap(lambda x, key: x * jax.random.bernoulli(key, 0.5, x.shape))(x, keys)


def gamma(x: Any, key: Any) -> Any:
    return jax.random.gamma(key, jnp.abs(x) + 0.5)


def along_the_last_axis(x: Any, key: Any) -> Any:
    return x + jax.random.normal(key, (6, len(x))).T


def in_a_gradient(x: Any, key: Any) -> Any:
    kept = jax.random.bernoulli(key, 0.5, x.shape)
    return jax.grad(lambda x: (kept * x**2).sum())(x)


def square(x: Any, key: Any) -> Any:
    """With 6 local rows, the batch looks like the features."""
    per_feature = jax.random.normal(key, (6,))
    per_row = jax.random.normal(key, (len(x),))
    return x + per_feature + per_row[:, None]


FUNCTIONS = [
    dropped, in_a_scan, in_a_loop, in_a_branch, in_a_checkpoint, several_per_row,
    keys_of_rows, gamma, along_the_last_axis, in_a_gradient, square,
]  # fmt: skip


def shuffled(x: Any, key: Any) -> Any:
    return jax.random.permutation(key, x)


def centred(x: Any, key: Any) -> Any:
    noise = jax.random.normal(key, x.shape)
    return x + noise - noise.mean(0)


def two_axes(x: Any, key: Any) -> Any:
    return jax.random.normal(key, (len(x), len(x))) @ x


@jax.custom_jvp
def noisy(x: Any, key: Any) -> Any:
    return x + jax.random.normal(key, x.shape)


noisy.defjvp(lambda x, dx: (noisy(*x), dx[0]))


def compute(fn: Any, x: Any, rows: slice) -> Any:
    position = np.stack([np.full(len(x), 5), np.arange(len(x))], -1).astype(np.uint32)
    keywords = {"fn": fn, "args": ARGS, "training": True, "batch": "rows", "stream": 7}
    run = jax.jit(lambda x, position: call(x, position, **keywords))
    return np.asarray(run(x[rows], position[rows]))


@pytest.mark.parametrize(
    "fn", slow_but([in_a_scan, in_a_branch, several_per_row, gamma], FUNCTIONS)
)
def test_a_row_has_the_same_numbers_in_any_part_of_the_batch(fn: Any) -> None:
    assert is_by_rows(fn, ARGS, mode=TRAINING)
    x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32)
    whole = compute(fn, x, slice(ROWS))
    parts = [compute(fn, x, part) for part in (slice(6), slice(6, ROWS))]
    np.testing.assert_allclose(whole, np.concatenate(parts), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("fn", [shuffled, centred, two_axes])
def test_a_function_that_mixes_the_rows_of_a_draw_is_not_by_rows(fn: Any) -> None:
    assert not is_by_rows(fn, ARGS, mode=TRAINING)


def with_a_derivative(x: Any, key: Any) -> Any:
    return noisy(x, key)


def with_another_key(x: Any, key: Any) -> Any:
    words = jnp.tile(jax.random.key_data(key), 2)
    return x + jax.random.normal(jax.random.wrap_key_data(words, impl="rbg"), x.shape)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (two_axes, "draws random numbers for several rows at once"),
        (with_a_derivative, "draws random numbers for each row in a function with a"),
        (with_another_key, "draws random numbers for each row with a key of the type"),
    ],
)
def test_a_draw_that_cannot_be_divided_by_rows_is_refused(
    fn: Any, message: str
) -> None:
    with pytest.raises(PlacerError, match=message):
        trace_function(fn, ARGS, 14, BY_ROWS)


def test_numbers_of_a_row_are_drawn_with_its_key() -> None:
    def drawn(x: Any, key: Any) -> Any:
        return x + jax.random.normal(key, x.shape)

    (region,) = trace_function(drawn, ARGS, ROWS, BY_ROWS).cut.regions
    key, rows = jax.random.key(3), jnp.arange(20, 20 + ROWS, dtype=jnp.uint32)
    (result,) = region(jnp.zeros((ROWS, 6)), key, rows)
    for row, numbers in zip(rows, result, strict=True):
        own = jax.random.normal(jax.random.fold_in(key, row), (6,))
        np.testing.assert_array_equal(numbers, own)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_any_other_number_of_rows_finds_the_draws_with_rows(fn: Any) -> None:
    found = {
        fingerprint(trace_function(fn, ARGS, 14, BY_ROWS, other).cut.regions[0])
        for other in (1, 6, 58)
    }
    assert len(found) == 1


def test_a_node_traces_a_function_for_its_rows_and_to_compare_it() -> None:
    traced: list[int] = []

    def counted(x: Any, key: Any) -> Any:
        traced.append(len(x))
        return x * jax.random.uniform(key, x.shape)

    same = fingerprint_of(counted, ARGS, 0, BY_ROWS)
    assert traced == [14, 58]
    trace._trace.cache_clear()
    function._cut_function.cache_clear()
    traced.clear()
    x, key = jnp.ones((ROWS, 6)), jax.random.key(0)
    random = {STEP_KEY: key, ROW_NUMBERS: jnp.arange(ROWS, dtype=jnp.uint32)}
    run_region(counted, ARGS, 0, ROWS, [x], same, BY_ROWS, random.__getitem__)
    assert sorted(traced) == [ROWS, 14]
