"""Drawn functions of parts of a batch compute what `jax.vmap` of them computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from tests.support.parts import by_vmap, on_workers

TYPES = ["float64[batch, 3]", "float64[3, 3]"]
ROWS = 2


def at(values: list[Any], number: int) -> Any:
    return values[number % len(values)]


def drawn_function(steps: list[tuple[int, int, int]]) -> Callable[..., Any]:
    """Return a function that computes new values from earlier ones, step by step.

    A step has the number of an operation, and of its operands: a value with rows and a value
    without.
    """

    def fn(x: Any, w: Any, *, key: Any) -> Any:
        rows, values = [jnp.tanh(x @ w)], [w[0]]
        for kind, first, second in steps:
            h, v = at(rows, first), at(values, second)
            match kind:
                case 0:
                    rows.append(jnp.tanh(h * v + at(rows, second) @ w))
                case 1:
                    values.append(jnp.sin(h).mean(0) + v)
                case 2:
                    values.append(lax.psum(v * 0.5, "batch"))
                case 3:
                    values.append(lax.pmean(h.mean(0), "batch"))
                case 4:
                    every = lax.all_gather(v, "batch")
                    values.append(every.sum(0) - every[lax.axis_index("batch")])
                case 5:
                    every = lax.all_gather(h, "batch", tiled=True)
                    rows.append(jax.nn.softmax(h @ every.T) @ every)
                case 6:
                    total = lax.psum(h, "batch")
                    rows.append(h - total / 4 + jnp.broadcast_to(v, h.shape))
                case _:
                    drawn = jax.random.normal(jax.random.fold_in(key, second), (3,))
                    values.append(v + 0.1 * drawn)
        return rows[-1].sum(-1), lax.pmean(values[-1], "batch"), lax.psum(v, "batch")

    return fn


STEP = st.tuples(st.integers(0, 7), st.integers(0, 9), st.integers(0, 9))


# Each example traces and differentiates a function twice, which takes 0.3 s.
@settings(max_examples=4, deadline=None)
@given(
    steps=st.lists(STEP, min_size=1, max_size=5),
    shape=st.sampled_from([(2, 1), (2, 2), (4, 2), (4, 4)]),
)
def test_drawn_functions(
    steps: list[tuple[int, int, int]], shape: tuple[int, int]
) -> None:
    parts, workers = shape
    fn, rng = drawn_function(steps), np.random.default_rng(7)

    def loss(run: Callable[..., Any], inputs: Any) -> Any:
        results = run(inputs)
        return sum(jnp.sin(y + 0.3).mean() for y in results), results

    with jax.enable_x64(True):
        shapes = (parts * ROWS, 3), (3, 3)
        inputs = [jnp.asarray(rng.normal(size=shape)) for shape in shapes]
        ways: list[Callable[..., Any]] = [
            lambda v: by_vmap(fn, TYPES, v, parts, has_key=True),
            lambda v: on_workers(fn, TYPES, v, parts, workers),
        ]
        expected, got = (
            jax.value_and_grad(lambda v, run=run: loss(run, v), has_aux=True)(inputs)
            for run in ways
        )
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)
