"""Pooling of images. Sequences are images of height 1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from math import inf

import jax
import jax.numpy as jnp
import numpy as np

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


def max_pool1d(
    x: jax.Array,
    *,
    pool_size: Sizes,
    strides: Sizes | None = None,
    padding: Padding = "valid",
) -> jax.Array:
    (window,) = pool_windows("max_pool1d", x.shape[1:-1], pool_size, strides, padding)
    image = x[:, None]
    return max_of_windows(Slide((Window(1), window), image.shape), image)[:, 0]


def max_pool2d(
    x: jax.Array,
    *,
    pool_size: Sizes,
    strides: Sizes | None = None,
    padding: Padding = "valid",
) -> jax.Array:
    height, width = pool_windows(
        "max_pool2d", x.shape[1:-1], pool_size, strides, padding
    )
    return max_of_windows(Slide((height, width), x.shape), x)


def avg_pool1d(
    x: jax.Array,
    *,
    pool_size: Sizes,
    strides: Sizes | None = None,
    padding: Padding = "valid",
) -> jax.Array:
    (window,) = pool_windows("avg_pool1d", x.shape[1:-1], pool_size, strides, padding)
    image = x[:, None]
    return _mean_of_windows(Slide((Window(1), window), image.shape), image)[:, 0]


def avg_pool2d(
    x: jax.Array,
    *,
    pool_size: Sizes,
    strides: Sizes | None = None,
    padding: Padding = "valid",
) -> jax.Array:
    height, width = pool_windows(
        "avg_pool2d", x.shape[1:-1], pool_size, strides, padding
    )
    return _mean_of_windows(Slide((height, width), x.shape), x)


def _mean_of_windows(slide: Slide, x: jax.Array) -> jax.Array:
    """Return the mean of each window, without padding."""
    sizes = zip(slide.windows, slide.image[1:3], strict=True)
    counts = tuple(window.taps_inside(size) for window, size in sizes)
    return _divide(counts, sum_of_windows(slide, widen(x))).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _divide(counts: Counts, sums: jax.Array) -> jax.Array:
    """Divide the sums of windows by their numbers of elements.

    `counts` are the elements of each window along each of the two dimensions.
    """
    n = np.multiply.outer(*counts)[:, :, None]
    return sums / jnp.asarray(n, sums.dtype)


def _divide_forward(counts: Counts, sums: jax.Array) -> tuple[jax.Array, None]:
    return _divide(counts, sums), None


def _divide_backward(counts: Counts, _: None, dy: jax.Array) -> tuple[jax.Array]:
    return (_divide(counts, dy),)


_divide.defvjp(_divide_forward, _divide_backward)


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


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _repeat_shared(bins: _Bins, x: jax.Array) -> jax.Array:
    return _take(x, bins.elements(), bins.axis, bins.fill)


def _repeat_shared_forward(bins: _Bins, x: jax.Array) -> tuple[jax.Array, None]:
    return _repeat_shared(bins, x), None


def _repeat_shared_backward(bins: _Bins, _: None, dy: jax.Array) -> tuple[jax.Array]:
    # Gathers add in a fixed order; the order of a scatter-add is not defined
    parts = (_take(dy, taps, bins.axis, 0.0) for taps in bins.taps())
    return (reduce(jnp.add, map(widen, parts)).astype(dy.dtype),)


_repeat_shared.defvjp(_repeat_shared_forward, _repeat_shared_backward)


def _take(x: jax.Array, indices: list[int], axis: int, fill: float) -> jax.Array:
    at = np.asarray(indices, np.int32)
    return jnp.take(x, at, axis, mode="fill", fill_value=fill)
