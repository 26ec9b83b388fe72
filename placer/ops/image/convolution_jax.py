"""Convolutions and their transposes: both keep x and w for backward, nothing else.

What runs over one dimension is an image of height 1: XLA is slower at it by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax

from placer.ops.elementwise.activation_jax import ACTIVATIONS
from placer.ops.elementwise.broadcasting_jax import plus
from placer.ops.image.correlation_jax import (
    Correlation,
    correlate,
    into_image,
    into_kernel,
)
from placer.ops.image.windows import (
    Padding,
    Sizes,
    Window,
    enlarged,
    outputs,
    windows,
)

Pair = tuple[jax.Array, jax.Array]


def conv1d(
    x: jax.Array,
    w: jax.Array,
    b: jax.Array | None = None,
    *,
    strides: Sizes = 1,
    padding: Padding = "valid",
    dilation: Sizes = 1,
    groups: int = 1,
    activation: str = "none",
) -> jax.Array:
    y = _convolution("conv1d", x, w, w.shape[1:], strides, padding, dilation, groups)
    return _finished(y, b, activation)


def conv2d(
    x: jax.Array,
    w: jax.Array,
    b: jax.Array | None = None,
    *,
    strides: Sizes = 1,
    padding: Padding = "valid",
    dilation: Sizes = 1,
    groups: int = 1,
    activation: str = "none",
) -> jax.Array:
    y = _convolution("conv2d", x, w, w.shape[2:], strides, padding, dilation, groups)
    return _finished(y, b, activation)


def depthwise_conv2d(
    x: jax.Array,
    w: jax.Array,
    b: jax.Array | None = None,
    *,
    strides: Sizes = 1,
    padding: Padding = "valid",
    dilation: Sizes = 1,
    activation: str = "none",
) -> jax.Array:
    channels, multiplier = w.shape[2:]
    joins, kind = (1, channels * multiplier), "depthwise_conv2d"
    y = _convolution(kind, x, w, joins, strides, padding, dilation, channels)
    return _finished(y, b, activation)


def conv1d_transpose(
    x: jax.Array,
    w: jax.Array,
    b: jax.Array | None = None,
    *,
    strides: Sizes = 1,
    padding: Padding = "valid",
    dilation: Sizes = 1,
    groups: int = 1,
    activation: str = "none",
) -> jax.Array:
    y = _transpose("conv1d_transpose", x, w, strides, padding, dilation, groups)
    return _finished(y, b, activation)


def conv2d_transpose(
    x: jax.Array,
    w: jax.Array,
    b: jax.Array | None = None,
    *,
    strides: Sizes = 1,
    padding: Padding = "valid",
    dilation: Sizes = 1,
    groups: int = 1,
    activation: str = "none",
) -> jax.Array:
    y = _transpose("conv2d_transpose", x, w, strides, padding, dilation, groups)
    return _finished(y, b, activation)


def _finished(y: jax.Array, b: jax.Array | None, activation: str) -> jax.Array:
    if b is not None:
        y = plus(y, b)
    return y if activation == "none" else ACTIVATIONS[activation](y)


def _convolution(
    kind: str,
    x: jax.Array,
    w: jax.Array,
    joins: Sequence[int],
    strides: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
) -> jax.Array:
    """x correlated with w, whose last two dimensions are `joins` to XLA."""
    image, window = x.shape[1:-1], w.shape[: x.ndim - 2]
    slid = windows(kind, image, window, strides, padding, dilation)
    shape = (x.shape[0], *outputs(kind, slid, image), joins[1])
    c = _correlation(slid, groups, x.shape, (*window, *joins), shape)
    return _correlate(c, x, w).reshape(shape)


def _transpose(
    kind: str,
    x: jax.Array,
    w: jax.Array,
    strides: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
) -> jax.Array:
    """The transpose of the correlation with w whose result is x."""
    sizes, window = x.shape[1:-1], w.shape[: x.ndim - 2]
    image = enlarged(kind, sizes, window, strides, padding, dilation)
    slid = windows(kind, image, window, strides, padding, dilation)
    shape = (x.shape[0], *image, w.shape[-2] * groups)
    c = _correlation(slid, groups, shape, w.shape, x.shape)
    return _spread(c, x, w).reshape(shape)


def _correlation(
    slid: tuple[Window, ...],
    groups: int,
    image: Sequence[int],
    kernel: Sequence[int],
    result: Sequence[int],
) -> Correlation:
    if len(slid) == 2:
        first, second = slid
        return Correlation(
            (first, second), groups, tuple(image), tuple(kernel), tuple(result)
        )
    (only,) = slid
    return Correlation(
        (Window(1), only),
        groups,
        (image[0], 1, *image[1:]),
        (1, *kernel),
        (result[0], 1, *result[1:]),
    )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _correlate(c: Correlation, x: jax.Array, w: jax.Array) -> jax.Array:
    return correlate(c, x.reshape(c.image), w.reshape(c.kernel))


def _correlate_forward(
    c: Correlation, x: jax.Array, w: jax.Array
) -> tuple[jax.Array, Pair]:
    return _correlate(c, x, w), (x, w)


def _correlate_backward(c: Correlation, kept: Pair, dy: jax.Array) -> Pair:
    x, w = kept
    dx = into_image(c, dy, w.reshape(c.kernel))
    dw = into_kernel(c, x.reshape(c.image), dy)
    return dx.reshape(x.shape), dw.reshape(w.shape)


_correlate.defvjp(_correlate_forward, _correlate_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _spread(c: Correlation, x: jax.Array, w: jax.Array) -> jax.Array:
    return into_image(c, x.reshape(c.result), w.reshape(c.kernel))


def _spread_forward(
    c: Correlation, x: jax.Array, w: jax.Array
) -> tuple[jax.Array, Pair]:
    return _spread(c, x, w), (x, w)


def _spread_backward(c: Correlation, kept: Pair, dy: jax.Array) -> Pair:
    x, w = kept
    dx = correlate(c, dy, w.reshape(c.kernel))
    dw = into_kernel(c, dy, x.reshape(c.result))
    return dx.reshape(x.shape), dw.reshape(w.shape)


_spread.defvjp(_spread_forward, _spread_backward)
