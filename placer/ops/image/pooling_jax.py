"""Pooling of images, and of sequences as images of height 1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from math import inf

import jax
import jax.numpy as jnp
import numpy as np

from placer.ops.common.precision_jax import wide
from placer.ops.image.pooling import pool_windows
from placer.ops.image.sliding_jax import Slide, largest, total
from placer.ops.image.windows import Padding, Sizes, Window, bins, each

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
    return largest(Slide((Window(1), window), image.shape), image)[:, 0]


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
    return largest(Slide((height, width), x.shape), x)


def avg_pool1d(
    x: jax.Array,
    *,
    pool_size: Sizes,
    strides: Sizes | None = None,
    padding: Padding = "valid",
) -> jax.Array:
    (window,) = pool_windows("avg_pool1d", x.shape[1:-1], pool_size, strides, padding)
    image = x[:, None]
    return _mean(Slide((Window(1), window), image.shape), image)[:, 0]


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
    return _mean(Slide((height, width), x.shape), x)


def _mean(slide: Slide, x: jax.Array) -> jax.Array:
    """The means of the windows, of which padding is no part."""
    sizes = zip(slide.windows, slide.image[1:3], strict=True)
    counts = tuple(window.inside(size) for window, size in sizes)
    return _divide(counts, total(slide, wide(x))).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _divide(counts: Counts, sums: jax.Array) -> jax.Array:
    """The sums of windows over how many elements each meets along every dimension."""
    n = np.multiply.outer(*counts)[:, :, None]
    return sums / jnp.asarray(n, sums.dtype)


def _divide_forward(counts: Counts, sums: jax.Array) -> tuple[jax.Array, None]:
    return _divide(counts, sums), None


def _divide_backward(counts: Counts, kept: None, dy: jax.Array) -> tuple[jax.Array]:
    return (_divide(counts, dy),)


_divide.defvjp(_divide_forward, _divide_backward)


def adaptive_max_pool2d(x: jax.Array, *, output_size: Sizes) -> jax.Array:
    sizes = each("adaptive_max_pool2d", "output_size", output_size, 2)
    windows, apart = _apart(x, sizes, -inf)
    return largest(Slide(windows, apart.shape), apart)


def adaptive_avg_pool2d(x: jax.Array, *, output_size: Sizes) -> jax.Array:
    sizes = each("adaptive_avg_pool2d", "output_size", output_size, 2)
    windows, apart = _apart(wide(x), sizes, 0.0)
    counts = tuple(
        tuple(stop - start for start, stop in bins(size, number))
        for size, number in zip(x.shape[1:3], sizes, strict=True)
    )
    return _divide(counts, total(Slide(windows, apart.shape), apart)).astype(x.dtype)


def _apart(
    x: jax.Array, sizes: tuple[int, ...], fill: float
) -> tuple[tuple[Window, Window], jax.Array]:
    """x with the elements of each adaptive window side by side, as many for each, and
    the windows of that: an element that two share stands in both."""
    windows = []
    for axis, number in enumerate(sizes, 1):
        size = x.shape[axis]
        longest = max(stop - start for start, stop in bins(size, number))
        if size != number * longest:
            x = _spread(_Bins(axis, size, number, longest, fill), x)
        windows.append(Window(longest, longest))
    return (windows[0], windows[1]), x


@dataclass(frozen=True, slots=True)
class _Bins:
    """Windows of a dimension that may differ in length and share elements."""

    axis: int
    size: int
    number: int
    longest: int
    fill: float

    def elements(self) -> list[int]:
        """The element that each tap of each window is; `size` where it is none."""
        return [
            start + tap if start + tap < stop else self.size
            for start, stop in bins(self.size, self.number)
            for tap in range(self.longest)
        ]

    def taps(self) -> list[list[int]]:
        """Lists that name for each element the taps that it is: in the first list one,
        in the next another, or one beyond the last where it is no more."""
        found: list[list[int]] = [[] for _ in range(self.size)]
        elements = self.elements()
        for tap, element in enumerate(elements):
            if element < self.size:
                found[element].append(tap)
        most = max(map(len, found))
        beyond = len(elements)
        rows = [(taps + [beyond] * most)[:most] for taps in found]
        return [list(column) for column in zip(*rows, strict=True)]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _spread(to: _Bins, x: jax.Array) -> jax.Array:
    return _take(x, to.elements(), to.axis, to.fill)


def _spread_forward(to: _Bins, x: jax.Array) -> tuple[jax.Array, None]:
    return _spread(to, x), None


def _spread_backward(to: _Bins, kept: None, dy: jax.Array) -> tuple[jax.Array]:
    # Read back in a fixed order, where a scatter adds in whichever comes.
    parts = (_take(dy, taps, to.axis, 0.0) for taps in to.taps())
    return (reduce(jnp.add, map(wide, parts)).astype(dy.dtype),)


_spread.defvjp(_spread_forward, _spread_backward)


def _take(x: jax.Array, indices: list[int], axis: int, fill: float) -> jax.Array:
    at = np.asarray(indices, np.int32)
    return jnp.take(x, at, axis, mode="fill", fill_value=fill)
