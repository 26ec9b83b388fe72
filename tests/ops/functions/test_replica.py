"""Functions of parts of a batch: reductions over the parts cut them into regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from placer import place_guard
from placer.errors import PlacerError
from placer.ops.functions.batch_types import TRACE_BATCHES
from placer.ops.functions.function import trace_function
from tests.support.parts import by_vmap, mode_of, on_workers
from tests.support.regions import arguments_text


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


X, W = "float64[batch, 3]", "float64[3, 3]"
ROWS = 5


def normalized(x: Any, w: Any) -> Any:
    h = x @ w
    mean = lax.pmean(h.mean(0), "batch")
    spread = lax.pmean(((h - mean) ** 2).mean(0), "batch")
    return jnp.tanh((h - mean) / jnp.sqrt(spread + 0.1)).sum(-1)


def inputs_for(parts: int) -> list[Any]:
    rng = np.random.default_rng(parts)
    shapes = (parts * ROWS, 3), (3, 3)
    return [jnp.asarray(rng.normal(size=shape)) for shape in shapes]


def check(fn: Callable[..., Any], has_key: bool = False, slope: bool = True) -> None:
    """Compare results and gradients with `jax.vmap`."""
    types = [X, W]
    for parts, workers in ((4, 2), (2, 2)):
        inputs = inputs_for(parts)
        expected = by_vmap(fn, types, inputs, parts, has_key)
        got = on_workers(fn, types, inputs, parts, workers)
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
        if not slope or parts == workers:
            continue

        def loss(run: Callable[..., Any], *inputs: Any) -> Any:
            floats = (y for y in run(inputs) if jnp.issubdtype(y.dtype, jnp.floating))
            return sum(jnp.sin(y + 0.3).mean() for y in floats)

        ways: list[Callable[..., Any]] = [
            lambda v, parts=parts: by_vmap(fn, types, v, parts, has_key),
            lambda v, parts=parts, n=workers: on_workers(fn, types, v, parts, n),
        ]
        slopes = [jax.grad(partial(loss, run), argnums=(0, 1))(*inputs) for run in ways]
        for one, other in zip(*slopes, strict=True):
            assert np.abs(one).max() > 1e-6
            np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)


def test_reductions_of_floats() -> None:
    check(normalized)


def of_both(x: Any, w: Any) -> Any:
    h = jnp.tanh(x @ w)
    own = h.mean(0)  # a value of the part, used before and after a reduction
    total = lax.psum(own * 2, "batch")
    again = lax.psum(jnp.cos(own + total), "batch")
    return (h - own + again).sum(-1), total, again + total


def test_a_value_of_a_part_is_used_after_a_reduction() -> None:
    check(of_both)


def gathered(x: Any, w: Any) -> Any:
    h = jnp.tanh(x @ w)
    means = lax.all_gather(h.mean(0), "batch")
    tiled = lax.all_gather(h.mean(0), "batch", tiled=True)
    last = lax.all_gather(h.mean(0), "batch", axis=1)
    at = lax.axis_index("batch")
    return (h * means[at]).sum(-1) + last[0].sum(), tiled.sum(), (means**2).sum()


@pytest.mark.slow
def test_gathered_values() -> None:
    check(gathered)


def contrasted(x: Any, w: Any) -> Any:
    h = jnp.tanh(x @ w)
    every = lax.all_gather(h, "batch", tiled=True)
    apart = lax.all_gather(h, "batch").sum((0, 1))
    logits = h @ every.T
    own = lax.axis_index("batch") * len(h) + jnp.arange(len(h))
    return -jax.nn.log_softmax(logits)[jnp.arange(len(h)), own] + h @ apart


@pytest.mark.slow
def test_gathered_rows() -> None:
    check(contrasted)


def extremes(x: Any, w: Any) -> Any:
    x = lax.stop_gradient(x)
    return (
        lax.pmax(x.max(0), "batch"),
        lax.pmin(x.min(), "batch"),
        lax.pmax(jnp.round(9 * x).astype(jnp.int32).sum(0) - 2**30, "batch"),
        lax.psum((1000 * x).astype(jnp.int64).sum(0) * 2**40, "batch"),
        lax.all_gather((x > 0).any(0), "batch"),
        lax.psum((x > 0).astype(jnp.int8).sum(0), "batch"),
        lax.psum(w, "batch"),
        lax.pmax(w[0], "batch"),
        lax.all_gather(w[0], "batch", axis=1, tiled=False),
        lax.psum(1, "batch") * w[0],
    )


def test_integers_and_equal_values() -> None:
    check(extremes, slope=False)


def with_noise(x: Any, w: Any, *, key: Any) -> Any:
    first, second = jax.random.split(key)
    h = x @ w * jax.random.bernoulli(first, 0.7, x.shape)
    noise = jax.random.normal(second, (3,))
    shared = lax.pmean(noise, "batch")
    return (h * (1 + noise)).sum(-1), shared + lax.pmean(h.mean(0), "batch")


def test_each_part_has_its_key() -> None:
    check(with_noise, has_key=True)


def inner_slope(x: Any, w: Any) -> Any:
    def loss(w: Any) -> Any:
        return lax.pmean((normalized(x, w) ** 2).mean(), "batch")

    def of_gathered(w: Any) -> Any:
        every = lax.all_gather(jnp.tanh(x @ w), "batch", tiled=True)
        means = lax.all_gather((x @ w).mean(0), "batch")
        return (every**2).mean() + (means**3).sum()

    first, second = jax.grad(loss)(w), jax.grad(of_gathered)(w)
    return lax.pmean(first, "batch"), lax.psum(second, "batch")


@pytest.mark.slow
def test_gradients_inside_the_function() -> None:
    check(inner_slope)


def guarded(x: Any, w: Any) -> Any:
    with place_guard("/node:worker:0"):
        h = jnp.tanh(x @ w)
        own = h.mean(0)
        total = lax.pmean(own, "batch")
    with place_guard("/node:worker:1"):
        h = h - own + total
        again = lax.psum(jnp.sin(h).mean(0), "batch")
    with place_guard("/node:worker:0"):
        return (h @ (w * 2) * again).sum(-1) + own.sum(), again + total


def test_guards_and_reductions() -> None:
    check(guarded)


def in_calls(x: Any, w: Any) -> Any:
    layer = jax.jit(lambda x: jax.checkpoint(normalized)(x, w))
    return layer(x) + layer(x * 2)


def test_calls_with_reductions_are_inlined() -> None:
    check(in_calls)


def complex_sums(x: Any, w: Any) -> Any:
    z = jnp.fft.fft(x @ w)
    total = lax.psum(z.mean(0), "batch")
    own = z.mean(0)
    return jnp.abs(z - total + own).sum(-1)


@pytest.mark.slow
def test_complex_values() -> None:
    check(complex_sums)


def as_rows(x: Any, w: Any) -> Any:
    # Equal in all parts, with the rows of a part.
    scale = jnp.broadcast_to(w[0], x.shape)
    total = lax.psum(x @ w, "batch")
    h = x * scale
    mean = jnp.broadcast_to(lax.pmean(h.mean(0), "batch"), x.shape)
    apart = lax.all_gather(x * w[1], "batch")
    again = lax.pmean((total * mean * scale).mean(0), "batch")
    return (total + h * scale - mean + again).sum(-1) + apart.sum((0, 2))


def test_equal_values_with_the_rows_of_a_part() -> None:
    check(as_rows)


def over_both(x: Any, w: Any) -> Any:
    def row(row: Any) -> Any:
        h = row @ w
        mean = lax.pmean(h, ("batch", "rows"))
        largest = lax.stop_gradient(h)
        return jnp.tanh(h - mean).sum() + lax.psum(h, ("rows", "batch")), largest

    h, largest = jax.vmap(row, axis_name="rows")(x)
    return h, lax.pmax(largest.max(0), "batch")


def test_a_reduction_over_rows_and_parts() -> None:
    check(over_both)


def test_a_reduction_ends_a_region() -> None:
    trace = trace_function(
        normalized, arguments_text(X, W), TRACE_BATCHES[0], mode_of(4)
    )
    splits = [region.split and region.split.results for region in trace.cut.regions]
    assert splits[0] == ("rows", "sum")
    assert splits[-1] == ("rows",)
    assert sum(each is not None and "sum" in each for each in splits) == 2


def unequal(x: Any, w: Any) -> Any:
    return (x @ w).mean()


def in_scan(x: Any, w: Any) -> Any:
    return lax.scan(lambda h, _: (lax.pmean(h, "batch"), None), w * x.sum(), length=2)[
        0
    ]


def in_while(x: Any, w: Any) -> Any:
    return lax.while_loop(lambda h: h < 3, lambda h: lax.psum(h + 1, "batch"), x.sum())


def in_cond(x: Any, w: Any) -> Any:
    return lax.cond(w[0, 0] > 0, lambda h: lax.pmax(h, "batch"), jnp.sin, x.sum())


@jax.custom_vjp
def reduced(x: Any) -> Any:
    return lax.psum(x.sum(), "batch")


reduced.defvjp(lambda x: (reduced(x), x), lambda x, dy: (x * dy,))


def in_custom(x: Any, w: Any) -> Any:
    return reduced(x @ w)


def permuted(x: Any, w: Any) -> Any:
    return lax.ppermute(x @ w, "batch", [(0, 1), (1, 0)])


def grouped(x: Any, w: Any) -> Any:
    return lax.psum(x @ w, "batch", axis_index_groups=[[0], [1]])


centered = jax.vmap(lambda row: row - lax.pmean(row, "batch"), axis_name="batch")


def bound_again(x: Any, w: Any) -> Any:
    return centered(x @ w).sum(-1)


def transposed(x: Any, w: Any) -> Any:
    return (x @ w).T


def crossing(x: Any, w: Any) -> Any:
    pairs = (w @ x.T).reshape(3, -1)
    return (lax.psum(pairs.sum(), "batch") * pairs).T


@pytest.mark.parametrize(
    ("fn", "message", "hint"),
    [
        (unequal, "has no rows, and another value in each part", 'lax.pmean(loss, "batch")'),
        (in_scan, r"'psum' \(test_replica.py:\d+\) over the axis 'batch' is inside 'scan'", "loop"),
        (in_while, "is inside 'while'", "Python loop"),
        (in_cond, "'pmax' .* is inside 'cond'", "Python loop"),
        (in_custom, "'psum' .* is inside 'custom_vjp_call'", "own derivative"),
        (permuted, r"'ppermute' \(test_replica.py:\d+\) cannot be computed", "all_gather"),
        (grouped, "'psum' .* over groups of parts", "all parts"),
        (bound_again, r"vmap \(test_replica.py:\d+\) binds the axis 'batch' again", 'axis="parts"'),
        (transposed, "whose first axis is not the batch", "rows as first axis"),
        (crossing, "its size on axis 1 depends on the batch", "rows of the part as first axis"),
    ],
)  # fmt: skip
def test_what_cannot_be_split_is_refused(
    fn: Callable[..., Any], message: str, hint: str
) -> None:
    with pytest.raises(PlacerError, match=message) as caught:
        trace_function(fn, arguments_text(X, W), TRACE_BATCHES[0], mode_of(2))
    assert hint in (caught.value.hint or "")


def test_vmap_works_after_an_error() -> None:
    with pytest.raises(PlacerError):
        trace_function(bound_again, arguments_text(X, W), 14, mode_of(2))
    assert bound_again(jnp.ones((2, 3)), jnp.ones((3, 3))).tolist() == [0, 0]
