"""Convolutions and transposed convolutions. Their backward needs only x and w.

A one-dimensional convolution is computed as one of images of height 1, because XLA's
one-dimensional convolution is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from placer.ops.common.gradient_jax import differentiable
from placer.ops.elementwise.activation_jax import ACTIVATIONS
from placer.ops.elementwise.broadcasting_jax import broadcast_add
from placer.ops.image.correlation_jax import (
    Correlation,
    correlate,
    transpose_to_image,
    transpose_to_kernel,
)
from placer.ops.image.windows import (
    Padding,
    Sizes,
    Window,
    make_windows,
    output_sizes,
    transposed_sizes,
)

Pair = tuple[jax.Array, jax.Array]


def _convolution(
    kind: str,
    x: jax.Array,
    w: jax.Array,
    strides: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
    channel_dims: Sequence[int] | None = None,
) -> jax.Array:
    """Correlate x with w, whose last two dimensions are `channel_dims` for XLA."""
    channel_dims = channel_dims or w.shape[-2:]
    image, window = x.shape[1:-1], w.shape[: x.ndim - 2]
    windows = make_windows(kind, image, window, strides, padding, dilation)
    shape = (x.shape[0], *output_sizes(kind, windows, image), channel_dims[1])
    c = _correlation(windows, groups, x.shape, (*window, *channel_dims), shape)
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
    """Apply the transpose of the correlation with w to x."""
    sizes, window = x.shape[1:-1], w.shape[: x.ndim - 2]
    image = transposed_sizes(kind, sizes, window, strides, padding, dilation)
    windows = make_windows(kind, image, window, strides, padding, dilation)
    shape = (x.shape[0], *image, w.shape[-2] * groups)
    c = _correlation(windows, groups, shape, w.shape, x.shape)
    return _correlate_transposed(c, x, w).reshape(shape)


def _correlation(
    windows: tuple[Window, ...],
    groups: int,
    image: Sequence[int],
    kernel: Sequence[int],
    result: Sequence[int],
) -> Correlation:
    if len(windows) == 2:
        first, second = windows
        return Correlation(
            (first, second), groups, tuple(image), tuple(kernel), tuple(result)
        )
    (only,) = windows
    return Correlation(
        (Window(1), only),
        groups,
        (image[0], 1, *image[1:]),
        (1, *kernel),
        (result[0], 1, *result[1:]),
    )


def _correlate_forward(
    c: Correlation, x: jax.Array, w: jax.Array
) -> tuple[jax.Array, Pair]:
    return correlate(c, x.reshape(c.image), w.reshape(c.kernel)), (x, w)


def _correlate_backward(c: Correlation, saved: Pair, dy: jax.Array) -> Pair:
    # y = x ⋆ w is linear in x and in w: each cotangent is the transpose applied to dy
    x, w = saved
    dx = transpose_to_image(c, dy, w.reshape(c.kernel))
    dw = transpose_to_kernel(c, x.reshape(c.image), dy)
    return dx.reshape(x.shape), dw.reshape(w.shape)


_correlate = differentiable(_correlate_forward, _correlate_backward, static=1)


def _correlate_transposed_forward(
    c: Correlation, x: jax.Array, w: jax.Array
) -> tuple[jax.Array, Pair]:
    return transpose_to_image(c, x.reshape(c.result), w.reshape(c.kernel)), (x, w)


def _correlate_transposed_backward(c: Correlation, saved: Pair, dy: jax.Array) -> Pair:
    # y is the transpose of z ⋆ w in z: dx = dy ⋆ w, and x has the role of the result's
    # cotangent in dw
    x, w = saved
    dx = correlate(c, dy, w.reshape(c.kernel))
    dw = transpose_to_kernel(c, dy, x.reshape(c.result))
    return dx.reshape(x.shape), dw.reshape(w.shape)


_correlate_transposed = differentiable(
    _correlate_transposed_forward, _correlate_transposed_backward, static=1
)


def _add_bias_and_activate(
    y: jax.Array, b: jax.Array | None, activation: str
) -> jax.Array:
    if b is not None:
        y = broadcast_add(y, b)
    return y if activation == "none" else ACTIVATIONS[activation](y)


def _layer(kind: str) -> Callable[..., jax.Array]:
    """Return the function of a convolution, which is not depthwise."""
    product = _transpose if kind.endswith("transpose") else _convolution

    def function(
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
        y = product(kind, x, w, strides, padding, dilation, groups)
        return _add_bias_and_activate(y, b, activation)

    return function


conv1d, conv2d = _layer("conv1d"), _layer("conv2d")
conv1d_transpose = _layer("conv1d_transpose")
conv2d_transpose = _layer("conv2d_transpose")


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
    channel_dims, kind = (1, channels * multiplier), "depthwise_conv2d"
    y = _convolution(kind, x, w, strides, padding, dilation, channels, channel_dims)
    return _add_bias_and_activate(y, b, activation)
