"""Pooling of images. A sequence is an image of height 1."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import zip_longest
from math import inf

import jax
import jax.numpy as jnp
import numpy as np

from ..common.gradient_jax import differentiable
from ..common.precision_jax import widen
from .sliding_jax import max_of_windows, sum_of_windows
from .windows import (
    Counts,
    Padding,
    Sizes,
    Slide,
    Window,
    adaptive_bins,
    adaptive_counts,
    checked_pool,
)

Bins = tuple[tuple[int, int], ...]
"""The start and end of each adaptive window along a dimension."""


def _mean_of_windows(slide: Slide, x: jax.Array) -> jax.Array:
    return _divide(slide.counts, sum_of_windows(widen(x), slide=slide)).astype(x.dtype)


def _divided(counts: Counts, sums: jax.Array) -> jax.Array:
    """Divide the sum of each window by its number of elements, per dimension."""
    n = np.multiply.outer(*counts)[:, :, None]
    return sums / jnp.asarray(n, sums.dtype)


# not with_gradient: it would save the counts as an array
_divide = differentiable(
    lambda counts, sums: (_divided(counts, sums), None),
    lambda counts, _, dy: (_divided(counts, dy),),
    static=1,
)


def _pool(
    summarize: Callable[[Slide, jax.Array], jax.Array],
) -> Callable[..., jax.Array]:
    def function(
        x: jax.Array,
        *,
        pool_size: Sizes,
        strides: Sizes | None = None,
        padding: Padding = "valid",
    ) -> jax.Array:
        slide = checked_pool(x.shape[1:-1], pool_size, strides, padding)
        if x.ndim == 4:
            return summarize(slide, x)
        return summarize(slide.over_images(), x[:, None])[:, 0]

    return function


max_pool1d = _pool(max_of_windows)
max_pool2d = _pool(max_of_windows)
avg_pool1d = _pool(_mean_of_windows)
avg_pool2d = _pool(_mean_of_windows)


def adaptive_max_pool2d(x: jax.Array, *, output_size: Sizes) -> jax.Array:
    counts = adaptive_counts(x.shape[1:3], output_size)
    return max_of_windows(*_separate_windows(x, counts, -inf))


def adaptive_avg_pool2d(x: jax.Array, *, output_size: Sizes) -> jax.Array:
    counts = adaptive_counts(x.shape[1:3], output_size)
    slide, separated = _separate_windows(widen(x), counts, 0.0)
    sums = sum_of_windows(separated, slide=slide)
    return _divide(counts, sums).astype(x.dtype)


def _separate_windows(
    x: jax.Array, counts: Counts, fill: float
) -> tuple[Slide, jax.Array]:
    """Return disjoint windows of equal size, padded with `fill`, and the copied x."""
    for axis, sizes in enumerate(counts, 1):
        if x.shape[axis] != len(sizes) * max(sizes):
            bins = adaptive_bins(x.shape[axis], len(sizes))
            x = _repeat_shared(axis, fill, bins, x)
    windows = tuple(Window(max(sizes), max(sizes)) for sizes in counts)
    return Slide(x.shape[1:3], windows, tuple(map(len, counts))), x


def _elements(bins: Bins) -> list[int]:
    """Return the index that each tap of each window reads; the size for no element."""
    longest, size = max(stop - start for start, stop in bins), bins[-1][1]
    return [
        start + tap if start + tap < stop else size
        for start, stop in bins
        for tap in range(longest)
    ]


def _taps(bins: Bins) -> list[list[int]]:
    """Return lists of the taps that read each element: the inverse of `_elements`."""
    elements, size = _elements(bins), bins[-1][1]
    taps_of: list[list[int]] = [[] for _ in range(size)]
    for tap, element in enumerate(elements):
        if element < size:
            taps_of[element].append(tap)
    return [*map(list, zip_longest(*taps_of, fillvalue=len(elements)))]


def _repeat_shared_backward(
    axis: int, fill: float, bins: Bins, _: None, dy: jax.Array
) -> tuple[jax.Array]:
    # Gathers add in a fixed order, while a scatter-add may add in any order
    parts = (_take(dy, taps, axis, 0.0) for taps in _taps(bins))
    return (reduce(jnp.add, map(widen, parts)).astype(dy.dtype),)


# not with_gradient: it would save the indices as arrays
_repeat_shared = differentiable(
    lambda axis, fill, bins, x: (_take(x, _elements(bins), axis, fill), None),
    _repeat_shared_backward,
    static=3,
)


def _take(x: jax.Array, indices: list[int], axis: int, fill: float) -> jax.Array:
    at = np.asarray(indices, np.int32)
    return jnp.take(x, at, axis, mode="fill", fill_value=fill)
