"""The correlation of images with a kernel, and its transposes into either.

XLA's convolution is fast on CPUs while all channels are one group, but goes through
groups element by element: there each group is a convolution of its own, and where a
group is one channel, sums of shifted images. On other devices XLA's own serves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import product

import jax
import jax.numpy as jnp

from placer.ops.common.precision_jax import wide
from placer.ops.common.transpose_jax import transpose
from placer.ops.image.windows import Window

Shape = tuple[int, ...]
Step = Callable[["Correlation", jax.Array, jax.Array], jax.Array]

_LAYOUT = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True, slots=True)
class Correlation:
    """How an image and a kernel meet.

    `image` [batch, height, width, in], `kernel` [height, width, in / groups, out] and
    `result` [batch, height, width, out] are shapes.
    """

    windows: tuple[Window, Window]
    groups: int
    image: Shape
    kernel: Shape
    result: Shape


def correlate(c: Correlation, x: jax.Array, w: jax.Array) -> jax.Array:
    """y, the windows of x multiplied with w."""
    return _dispatch(c, _whole, _shifted, x, w)


def into_image(c: Correlation, dy: jax.Array, w: jax.Array) -> jax.Array:
    """The transpose in x: what each element of dy gives to the elements of x."""
    return _dispatch(c, _whole_into_image, _shifted_into_image, dy, w)


def into_kernel(c: Correlation, x: jax.Array, dy: jax.Array) -> jax.Array:
    """The transpose in w."""
    return _dispatch(c, _whole_into_kernel, _shifted_into_kernel, x, dy)


def _dispatch(
    c: Correlation, whole: Step, shifted: Step, a: jax.Array, b: jax.Array
) -> jax.Array:
    if c.groups == 1:
        return whole(c, a, b)
    narrow = partial(shifted, c) if c.kernel[2] == 1 else partial(_grouped, whole, c)
    result: jax.Array = jax.lax.platform_dependent(
        a, b, cpu=narrow, default=partial(whole, c)
    )
    return result


def _whole(c: Correlation, x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x,
        w,
        [window.stride for window in c.windows],
        [(window.low, window.high) for window in c.windows],
        rhs_dilation=[window.dilation for window in c.windows],
        dimension_numbers=_LAYOUT,
        feature_group_count=c.groups,
    )


def _whole_into_image(c: Correlation, dy: jax.Array, w: jax.Array) -> jax.Array:
    return transpose(lambda x: _whole(c, x, w), c.image, dy)


def _whole_into_kernel(c: Correlation, x: jax.Array, dy: jax.Array) -> jax.Array:
    return transpose(lambda w: _whole(c, x, w), c.kernel, dy)


def _grouped(whole: Step, c: Correlation, a: jax.Array, b: jax.Array) -> jax.Array:
    """Each group by itself: all three have its channels side by side at the end."""

    def part(shape: Shape) -> Shape:
        return (*shape[:-1], shape[-1] // c.groups)

    one = replace(
        c,
        groups=1,
        image=part(c.image),
        kernel=part(c.kernel),
        result=part(c.result),
    )
    pairs = zip(jnp.split(a, c.groups, -1), jnp.split(b, c.groups, -1), strict=True)
    return jnp.concatenate([whole(one, p, q) for p, q in pairs], -1)


def _shifted(c: Correlation, x: jax.Array, w: jax.Array) -> jax.Array:
    """Groups of one channel: each tap is the image, shifted, times a number."""
    shifts, multiples = _shifts(c, wide(x)), _multiples(c, wide(w), c.kernel)
    filters = []
    for multiple in multiples:
        taps = multiple.reshape(len(shifts), -1)
        terms = (shift * tap for shift, tap in zip(shifts, taps, strict=True))
        filters.append(reduce(jnp.add, terms))
    return jnp.stack(filters, -1).reshape(c.result).astype(x.dtype)


def _shifted_into_image(c: Correlation, dy: jax.Array, w: jax.Array) -> jax.Array:
    return transpose(lambda x: _shifted(c, x, w), c.image, dy)


def _shifted_into_kernel(c: Correlation, x: jax.Array, dy: jax.Array) -> jax.Array:
    shifts, multiples = _shifts(c, wide(x)), _multiples(c, wide(dy), c.result)
    zeros = [jnp.zeros((), shifts[0].dtype)] * len(shifts)
    # One pass over the image makes the sums of all taps.
    filters = [
        jnp.stack(jax.lax.reduce([x * dy for x in shifts], zeros, _add, (0, 1, 2)))
        for dy in multiples
    ]
    return jnp.stack(filters, -1).reshape(c.kernel).astype(x.dtype)


def _add(a: list[jax.Array], b: list[jax.Array]) -> list[jax.Array]:
    return [x + y for x, y in zip(a, b, strict=True)]


def _multiples(c: Correlation, x: jax.Array, shape: Shape) -> list[jax.Array]:
    """The filters of a kernel or a result apart: each has one for every channel."""
    channels = c.image[-1]
    apart = x.reshape(*shape[:-1], channels, shape[-1] // channels)
    return [apart[..., i] for i in range(apart.shape[-1])]


def _shifts(c: Correlation, x: jax.Array) -> list[jax.Array]:
    """For each tap of the window, the elements that it meets: [batch, …, in]."""
    ends = [(window.low, window.high, 0) for window in c.windows]
    padded = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *ends, (0, 0, 0)])
    spans = [
        [
            slice(start, start + (size - 1) * window.stride + 1, window.stride)
            for start in range(0, window.reach, window.dilation)
        ]
        for window, size in zip(c.windows, c.result[1:3], strict=True)
    ]
    return [padded[:, rows, columns] for rows, columns in product(*spans)]
