"""Sliding windows over images: the maximum or the sum of each window.

A 2D window is computed along the width, then along the height. A maximum saves the tap
where it was found. The backward visits the windows that contain an element of x, up to
⌈size / stride⌉ along each dimension. XLA's select_and_scatter takes 40 times as long on
a CPU.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import inf

import jax
import jax.numpy as jnp
import numpy as np

from ..common.gradient_jax import WithBackward, differentiable, with_gradient
from ..common.precision_jax import widen
from ..common.transpose_jax import apply_transpose
from .correlation_jax import pad_image
from .windows import Slide, Window, tap_dtype


def _max_forward(slide: Slide, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    (height, width), (rows, columns) = slide.windows, slide.outputs
    value = pad_image(x, [(window.low, window.high) for window in slide.windows], -inf)
    index = jnp.zeros(value.shape, tap_dtype(height.size * width.size))
    value, index = _max_along(2, width, columns, 1, value, index)
    return _max_along(1, height, rows, width.size, value, index)


def _max_along(
    axis: int,
    window: Window,
    number: int,
    step: int,
    value: jax.Array,
    index: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return the first maximum of each window along an axis; add its tap to its index."""

    def read_tap(array: jax.Array, tap: int) -> jax.Array:
        stop = tap + (number - 1) * window.stride + 1
        return jax.lax.slice_in_dim(array, tap, stop, window.stride, axis)

    best, best_index = read_tap(value, 0), read_tap(index, 0)
    for tap in range(1, window.size):
        other = read_tap(value, tap)
        better = (other > best) | jnp.isnan(other)
        best = jnp.where(better, other, best)
        best_index = jnp.where(better, read_tap(index, tap) + tap * step, best_index)
    return best, best_index


def _max_backward(slide: Slide, index: jax.Array, dy: jax.Array) -> tuple[jax.Array]:
    # dx of an element is the sum of dy over the windows with their maximum at the
    # element
    overlapping = product(*(range(_overlap(window)) for window in slide.windows))
    parts = (_from_window(slide, before, index, dy) for before in overlapping)
    dx = reduce(jnp.add, map(widen, parts)).astype(dy.dtype)
    # Remove padding, and add zeros for elements outside all windows
    ends = [
        (-window.low, window.low + size - covered)
        for window, size, covered in zip(
            slide.windows, slide.image, dx.shape[1:3], strict=True
        )
    ]
    return (pad_image(dx, ends),)


def _overlap(window: Window) -> int:
    """Return how many windows may share an element along a dimension."""
    return -(-window.size // window.stride)


def _from_window(
    slide: Slide, before: tuple[int, ...], index: jax.Array, dy: jax.Array
) -> jax.Array:
    """Return x's cotangents from the window `before` windows before the last one."""
    height, width = slide.windows
    back, left = (
        np.arange(window.stride) + n * window.stride
        for window, n in zip(slide.windows, before, strict=True)
    )
    inside = (back[:, None] < height.size) & (left < width.size)
    tap = np.where(inside, back[:, None] * width.size + left, 0).astype(index.dtype)
    # [batch, rows, 1, columns, 1, channels] broadcasts to the strides of each window
    at = (slice(None), slice(None), None, slice(None), None)
    ends = [
        (n, _overlap(window) - 1 - n)
        for window, n in zip(slide.windows, before, strict=True)
    ]
    index, dy = (pad_image(a, ends)[at] for a in (index, dy))
    is_max = (index == tap[None, :, None, :, None]) & inside[None, :, None, :, None]
    dx = jnp.where(is_max, dy, 0)
    n, rows, _, columns, _, channels = dx.shape
    return dx.reshape(n, rows * height.stride, columns * width.stride, channels)


max_of_windows = differentiable(_max_forward, _max_backward, static=1)
"""Return the largest element of each window of a `Slide`; NaN propagates."""


@with_gradient
def sum_of_windows(x: jax.Array, *, slide: Slide) -> WithBackward:
    """Return the sum of each window of a `Slide`."""
    (height, width), (rows, columns) = slide.windows, slide.outputs

    def sums(x: jax.Array) -> jax.Array:
        return _sum_along(1, height, rows, _sum_along(2, width, columns, x))

    return sums(x), lambda dy: apply_transpose(sums, x.shape, dy)


def _sum_along(axis: int, window: Window, number: int, x: jax.Array) -> jax.Array:
    """Return the sum of each window along an axis, as a sum of adjacent pieces."""
    pieces = number - 1 + _overlap(window)
    ends = [(0, 0, 0)] * x.ndim
    beyond = pieces * window.stride - window.low - x.shape[axis]
    ends[axis] = (window.low, beyond, 0)
    padded = jax.lax.pad(x, jnp.zeros((), x.dtype), ends)
    cut = padded.reshape(*x.shape[:axis], pieces, window.stride, *x.shape[axis + 1 :])
    parts = []
    for n in range(_overlap(window)):
        piece = jax.lax.slice_in_dim(cut, n, n + number, axis=axis)
        length = min(window.stride, window.size - n * window.stride)
        piece = jax.lax.slice_in_dim(piece, 0, length, axis=axis + 1)
        parts.append(jnp.sum(piece, axis + 1))
    return reduce(jnp.add, parts)
