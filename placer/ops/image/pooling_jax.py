"""Pooling of images. Sequences are images of height 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from math import inf

import jax
import jax.numpy as jnp
import numpy as np

from placer.ops.common.gradient_jax import linear
from placer.ops.common.precision_jax import widen
from placer.ops.image.pooling import pool_windows
from placer.ops.image.sliding_jax import Slide, max_of_windows, sum_of_windows
from placer.ops.image.windows import (
    Padding,
    Sizes,
    Window,
    adaptive_bins,
    per_dimension,
)

Counts = tuple[tuple[int, ...], ...]


def _mean_of_windows(slide: Slide, x: jax.Array) -> jax.Array:
    """Return the mean of each window, without padding."""
    sizes = zip(slide.windows, slide.image[1:3], strict=True)
    counts = tuple(window.taps_inside(size) for window, size in sizes)
    return _divide(counts, sum_of_windows(slide, widen(x))).astype(x.dtype)


def _divided(counts: Counts, sums: jax.Array) -> jax.Array:
    """Divide the sums of windows by their numbers of elements.

    `counts` are the elements of each window along each of the two dimensions.
    """
    n = np.multiply.outer(*counts)[:, :, None]
    return sums / jnp.asarray(n, sums.dtype)


_divide = linear(_divided, _divided, static=1)


def _pool(
    kind: str, summarize: Callable[[Slide, jax.Array], jax.Array]
) -> Callable[..., jax.Array]:
    """Return the function of a pooling op."""

    def function(
        x: jax.Array,
        *,
        pool_size: Sizes,
        strides: Sizes | None = None,
        padding: Padding = "valid",
    ) -> jax.Array:
        windows = pool_windows(kind, x.shape[1:-1], pool_size, strides, padding)
        if len(windows) == 2:
            return summarize(Slide((windows[0], windows[1]), x.shape), x)
        image = x[:, None]
        slide = Slide((Window(1), windows[0]), image.shape)
        return summarize(slide, image)[:, 0]

    return function


max_pool1d = _pool("max_pool1d", max_of_windows)
max_pool2d = _pool("max_pool2d", max_of_windows)
avg_pool1d = _pool("avg_pool1d", _mean_of_windows)
avg_pool2d = _pool("avg_pool2d", _mean_of_windows)


def adaptive_max_pool2d(x: jax.Array, *, output_size: Sizes) -> jax.Array:
    sizes = per_dimension("adaptive_max_pool2d", "output_size", output_size, 2)
    windows, separated = _separate_windows(x, sizes, -inf)
    return max_of_windows(Slide(windows, separated.shape), separated)


def adaptive_avg_pool2d(x: jax.Array, *, output_size: Sizes) -> jax.Array:
    sizes = per_dimension("adaptive_avg_pool2d", "output_size", output_size, 2)
    windows, separated = _separate_windows(widen(x), sizes, 0.0)
    counts = tuple(
        tuple(stop - start for start, stop in adaptive_bins(size, number))
        for size, number in zip(x.shape[1:3], sizes, strict=True)
    )
    return _divide(
        counts, sum_of_windows(Slide(windows, separated.shape), separated)
    ).astype(x.dtype)


def _separate_windows(
    x: jax.Array, sizes: tuple[int, ...], fill: float
) -> tuple[tuple[Window, Window], jax.Array]:
    """Copy x so that adaptive windows are disjoint and of equal size.

    Returns the windows and the copy. An element that two windows share is in both of
    them, and shorter windows are filled with `fill`.
    """
    windows = []
    for axis, number in enumerate(sizes, 1):
        size = x.shape[axis]
        longest = max(stop - start for start, stop in adaptive_bins(size, number))
        if size != number * longest:
            x = _repeat_shared(_Bins(axis, size, number, longest, fill), x)
        windows.append(Window(longest, longest))
    return (windows[0], windows[1]), x


@dataclass(frozen=True, slots=True)
class _Bins:
    """Adaptive windows along a dimension. They may differ in size and overlap."""

    axis: int
    size: int
    number: int
    longest: int
    fill: float

    def elements(self) -> list[int]:
        """Return the element of each tap of each window; `size` if it has none."""
        return [
            start + tap if start + tap < stop else self.size
            for start, stop in adaptive_bins(self.size, self.number)
            for tap in range(self.longest)
        ]

    def taps(self) -> list[list[int]]:
        """Return lists that name the taps of each element, the inverse of `elements`.

        The first list has one tap for each element, the next another, or an index past
        the last tap for an element without another.
        """
        taps_of: list[list[int]] = [[] for _ in range(self.size)]
        elements = self.elements()
        for tap, element in enumerate(elements):
            if element < self.size:
                taps_of[element].append(tap)
        most = max(map(len, taps_of))
        beyond = len(elements)
        rows = [(taps + [beyond] * most)[:most] for taps in taps_of]
        return [list(column) for column in zip(*rows, strict=True)]


def _repeat_shared_backward(bins: _Bins, dy: jax.Array) -> jax.Array:
    # Gathers add in a fixed order; the order of a scatter-add is not defined
    parts = (_take(dy, taps, bins.axis, 0.0) for taps in bins.taps())
    return reduce(jnp.add, map(widen, parts)).astype(dy.dtype)


_repeat_shared = linear(
    lambda bins, x: _take(x, bins.elements(), bins.axis, bins.fill),
    _repeat_shared_backward,
    static=1,
)


def _take(x: jax.Array, indices: list[int], axis: int, fill: float) -> jax.Array:
    at = np.asarray(indices, np.int32)
    return jnp.take(x, at, axis, mode="fill", fill_value=fill)
