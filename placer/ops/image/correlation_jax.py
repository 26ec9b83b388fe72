"""The correlation of images with a kernel, and its transposes in either operand.

XLA's convolution is fast on CPUs for one group of channels, but slow for several. On
CPUs, each group is therefore a separate convolution. If each group has one channel, it
is a sum of shifted images. Other devices use XLA's grouped convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import product

import jax
import jax.numpy as jnp

from ..common.precision_jax import widen
from ..common.transpose_jax import apply_transpose
from .windows import Window

Shape = tuple[int, ...]
Step = Callable[["Correlation", jax.Array, jax.Array], jax.Array]

_LAYOUT = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True, slots=True)
class Correlation:
    """The windows, groups and shapes of a correlation.

    Attributes:
        image: [batch, height, width, in].
        kernel: [height, width, in / groups, out].
        result: [batch, height, width, out].
    """

    windows: tuple[Window, ...]
    groups: int
    image: Shape
    kernel: Shape
    result: Shape


def correlate(c: Correlation, x: jax.Array, w: jax.Array) -> jax.Array:
    """Return y: for each window of x, the product with w, summed."""
    return _dispatch(c, _convolve, _sum_shifted, x, w)


def transpose_to_image(c: Correlation, dy: jax.Array, w: jax.Array) -> jax.Array:
    """Return the cotangent of x: each element of dy times w, added to its window."""
    return _dispatch(c, _convolve_to_image, _sum_shifted_to_image, dy, w)


def transpose_to_kernel(c: Correlation, x: jax.Array, dy: jax.Array) -> jax.Array:
    """Return the cotangent of w: x times dy, summed over all windows."""
    return _dispatch(c, _convolve_to_kernel, _sum_shifted_to_kernel, x, dy)


def _dispatch(
    c: Correlation, convolve: Step, shifted: Step, a: jax.Array, b: jax.Array
) -> jax.Array:
    if c.groups == 1:
        return convolve(c, a, b)
    on_cpu = (
        partial(shifted, c) if c.kernel[2] == 1 else partial(_per_group, convolve, c)
    )
    result: jax.Array = jax.lax.platform_dependent(
        a, b, cpu=on_cpu, default=partial(convolve, c)
    )
    return result


def _convolve(c: Correlation, x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        w,
        [window.stride for window in c.windows],
        [(window.low, window.high) for window in c.windows],
        rhs_dilation=[window.dilation for window in c.windows],
        dimension_numbers=_LAYOUT,
        feature_group_count=c.groups,
    )


def _convolve_to_image(c: Correlation, dy: jax.Array, w: jax.Array) -> jax.Array:
    return apply_transpose(lambda x: _convolve(c, x, w), c.image, dy)


def _convolve_to_kernel(c: Correlation, x: jax.Array, dy: jax.Array) -> jax.Array:
    return apply_transpose(lambda w: _convolve(c, x, w), c.kernel, dy)


def _per_group(convolve: Step, c: Correlation, a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute each channel group separately."""

    def of_group(shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] // c.groups)

    group = replace(
        c,
        groups=1,
        image=of_group(c.image),
        kernel=of_group(c.kernel),
        result=of_group(c.result),
    )
    pairs = zip(jnp.split(a, c.groups, -1), jnp.split(b, c.groups, -1), strict=True)
    return jnp.concatenate([convolve(group, p, q) for p, q in pairs], -1)


def _sum_shifted(c: Correlation, x: jax.Array, w: jax.Array) -> jax.Array:
    """Correlate groups of one channel: sum shifted images times the taps of w."""
    shifts, filter_taps = _shifts(c, widen(x)), _per_filter(c, widen(w), c.kernel)
    filters = []
    for taps in filter_taps:
        taps = taps.reshape(len(shifts), -1)
        terms = (shift * tap for shift, tap in zip(shifts, taps, strict=True))
        filters.append(reduce(jnp.add, terms))
    return jnp.stack(filters, -1).reshape(c.result).astype(x.dtype)


def _sum_shifted_to_image(c: Correlation, dy: jax.Array, w: jax.Array) -> jax.Array:
    return apply_transpose(lambda x: _sum_shifted(c, x, w), c.image, dy)


def _sum_shifted_to_kernel(c: Correlation, x: jax.Array, dy: jax.Array) -> jax.Array:
    shifts, dys = _shifts(c, widen(x)), _per_filter(c, widen(dy), c.result)
    zeros = [jnp.zeros((), shifts[0].dtype)] * len(shifts)
    # One reduction over all shifts sums all taps in one pass over x
    filters = [
        jnp.stack(jax.lax.reduce([x * dy for x in shifts], zeros, _add, (0, 1, 2)))
        for dy in dys
    ]
    return jnp.stack(filters, -1).reshape(c.kernel).astype(x.dtype)


def _add(a: list[jax.Array], b: list[jax.Array]) -> list[jax.Array]:
    return [x + y for x, y in zip(a, b, strict=True)]


def _per_filter(c: Correlation, x: jax.Array, shape: Shape) -> list[jax.Array]:
    """Split the channels of a kernel or result: item i is filter i of each channel."""
    channels = c.image[-1]
    separated = x.reshape(*shape[:-1], channels, shape[-1] // channels)
    return [separated[..., i] for i in range(separated.shape[-1])]


def _shifts(c: Correlation, x: jax.Array) -> list[jax.Array]:
    """Return the elements that each tap of the window reads: [batch, …, in]."""
    padded = pad_image(x, [(window.low, window.high) for window in c.windows])
    spans = [
        [
            slice(start, start + (size - 1) * window.stride + 1, window.stride)
            for start in range(0, window.span, window.dilation)
        ]
        for window, size in zip(c.windows, c.result[1:3], strict=True)
    ]
    return [padded[:, rows, columns] for rows, columns in product(*spans)]


def pad_image(
    x: jax.Array, ends: Sequence[tuple[int, int]], value: float = 0.0
) -> jax.Array:
    """Pad the height and width of images; a negative number cuts elements off."""
    config = [(0, 0, 0), *((low, high, 0) for low, high in ends), (0, 0, 0)]
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), config)
