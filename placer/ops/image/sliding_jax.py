"""The largest element and the sum of each window that slides over an image.

A window over an image is one along the width, then one along the height of what that
gives. A maximum keeps for backward which tap of its window it was; backward asks for
each element of x which windows meet it, ⌈size / stride⌉ along a dimension. XLA's own
select_and_scatter takes 40 times as long on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from math import inf

import jax
import jax.numpy as jnp
import numpy as np

from placer.ops.common.precision_jax import wide
from placer.ops.common.transpose_jax import transpose
from placer.ops.image.pooling import index_dtype
from placer.ops.image.windows import Window


@dataclass(frozen=True, slots=True)
class Slide:
    """Windows over the dimensions 1 and 2 of images of that shape, channels last."""

    windows: tuple[Window, Window]
    image: tuple[int, ...]

    @property
    def outputs(self) -> tuple[int, int]:
        height, width = self.windows
        return height.outputs(self.image[1]), width.outputs(self.image[2])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def largest(slide: Slide, x: jax.Array) -> jax.Array:
    """The first largest element of each window, or NaN where it has one."""
    return _largest_forward(slide, x)[0]


def _largest_forward(slide: Slide, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    (height, width), (rows, columns) = slide.windows, slide.outputs
    value = _padded(slide, x, -inf)
    index = jnp.zeros(value.shape, index_dtype(height.size * width.size))
    value, index = _along(2, width, columns, 1, value, index)
    return _along(1, height, rows, width.size, value, index)


def _padded(slide: Slide, x: jax.Array, value: float) -> jax.Array:
    ends = [(window.low, window.high, 0) for window in slide.windows]
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), [(0, 0, 0), *ends, (0, 0, 0)])


def _along(
    axis: int,
    window: Window,
    number: int,
    step: int,
    value: jax.Array,
    index: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The first largest of each window along an axis; its tap, times `step`, is added
    to its index."""

    def tap(of: jax.Array, at: int) -> jax.Array:
        stop = at + (number - 1) * window.stride + 1
        return jax.lax.slice_in_dim(of, at, stop, window.stride, axis)

    best, where = tap(value, 0), tap(index, 0)
    for at in range(1, window.size):
        other = tap(value, at)
        better = (other > best) | jnp.isnan(other)
        best = jnp.where(better, other, best)
        where = jnp.where(better, tap(index, at) + at * step, where)
    return best, where


def _largest_backward(
    slide: Slide, index: jax.Array, dy: jax.Array
) -> tuple[jax.Array]:
    meeting = product(*(range(_overlap(window)) for window in slide.windows))
    parts = (_of_window(slide, before, index, dy) for before in meeting)
    total = reduce(jnp.add, map(wide, parts)).astype(dy.dtype)
    return (_unpadded(slide, total),)


def _overlap(window: Window) -> int:
    """How many windows may meet one element."""
    return -(-window.size // window.stride)


def _of_window(
    slide: Slide, before: tuple[int, ...], index: jax.Array, dy: jax.Array
) -> jax.Array:
    """What each element has from one of the windows that meet it: from the one that
    stands so many windows `before` the last of them, along each dimension."""
    height, width = slide.windows
    back, left = (
        np.arange(window.stride) + n * window.stride
        for window, n in zip(slide.windows, before, strict=True)
    )
    there = (back[:, None] < height.size) & (left < width.size)
    tap = np.where(there, back[:, None] * width.size + left, 0).astype(index.dtype)
    at = (slice(None), slice(None), None, slice(None), None)
    index, dy = (_shifted(slide, before, a)[at] for a in (index, dy))
    mine = (index == tap[None, :, None, :, None]) & there[None, :, None, :, None]
    dx = jnp.where(mine, dy, 0)
    n, rows, _, columns, _, channels = dx.shape
    return dx.reshape(n, rows * height.stride, columns * width.stride, channels)


def _shifted(slide: Slide, before: tuple[int, ...], a: jax.Array) -> jax.Array:
    ends = [
        (n, _overlap(window) - 1 - n, 0)
        for window, n in zip(slide.windows, before, strict=True)
    ]
    return jax.lax.pad(a, jnp.zeros((), a.dtype), [(0, 0, 0), *ends, (0, 0, 0)])


def _unpadded(slide: Slide, dx: jax.Array) -> jax.Array:
    """The image of a padded one, with 0 where no window reaches."""
    ends = [
        (-window.low, window.low + size - covered, 0)
        for window, size, covered in zip(
            slide.windows, slide.image[1:3], dx.shape[1:3], strict=True
        )
    ]
    return jax.lax.pad(dx, jnp.zeros((), dx.dtype), [(0, 0, 0), *ends, (0, 0, 0)])


largest.defvjp(_largest_forward, _largest_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def total(slide: Slide, x: jax.Array) -> jax.Array:
    """The sum of each window."""
    return _total(slide, x)


def _total(slide: Slide, x: jax.Array) -> jax.Array:
    (height, width), (rows, columns) = slide.windows, slide.outputs
    return _sums(1, height, rows, _sums(2, width, columns, x))


def _sums(axis: int, window: Window, number: int, x: jax.Array) -> jax.Array:
    """Along an axis, the sums of the pieces that the strides cut, added up."""
    pieces = number - 1 + _overlap(window)
    ends = [(0, 0, 0)] * x.ndim
    beyond = pieces * window.stride - window.low - x.shape[axis]
    ends[axis] = (window.low, beyond, 0)
    padded = jax.lax.pad(x, jnp.zeros((), x.dtype), ends)
    cut = padded.reshape(*x.shape[:axis], pieces, window.stride, *x.shape[axis + 1 :])
    parts = []
    for n in range(_overlap(window)):
        piece = jax.lax.slice_in_dim(cut, n, n + number, axis=axis)
        met = min(window.stride, window.size - n * window.stride)
        piece = jax.lax.slice_in_dim(piece, 0, met, axis=axis + 1)
        parts.append(jnp.sum(piece, axis + 1))
    return reduce(jnp.add, parts)


def _total_forward(slide: Slide, x: jax.Array) -> tuple[jax.Array, None]:
    return total(slide, x), None


def _total_backward(slide: Slide, kept: None, dy: jax.Array) -> tuple[jax.Array]:
    return (transpose(partial(_total, slide), slide.image, dy),)


total.defvjp(_total_forward, _total_backward)
