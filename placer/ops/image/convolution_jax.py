"""Convolutions and transposed convolutions. Their backward needs only x and w.

A one-dimensional convolution is computed as one of images of height 1, because XLA's
one-dimensional convolution is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax

from placer.ops.common.gradient_jax import WithBackward, with_gradient
from placer.ops.image.correlation_jax import (
    Correlation,
    correlate,
    transpose_to_image,
    transpose_to_kernel,
)
from placer.ops.image.windows import Padding, Sizes, slide_windows
from placer.ops.linear.weighted_jax import add_bias_and_activate


def _convolve(
    kind: str,
    x: jax.Array,
    w: jax.Array,
    b: jax.Array | None,
    strides: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
    activation: str,
    channel_dims: Sequence[int] | None = None,
) -> jax.Array:
    """Correlate x with w, or apply the transpose of that; add b, and activate.

    For XLA, the last two dimensions of w are `channel_dims`.
    """
    transposed = kind.endswith("transpose")
    rows, sizes, window = x.shape[0], x.shape[1:-1], w.shape[: x.ndim - 2]
    slide = slide_windows(
        sizes, window, strides, padding, dilation, transposed=transposed
    )
    of_group, out = channel_dims or w.shape[-2:]
    images = slide.over_images()
    c = Correlation(
        images.windows,
        groups,
        (rows, *images.image, of_group * groups),
        (*(window.size for window in images.windows), of_group, out),
        (rows, *images.outputs, out),
    )
    y = _correlate(x, w, c=c, transposed=transposed)
    y = y.reshape(rows, *(slide.image if transposed else slide.outputs), y.shape[-1])
    return add_bias_and_activate(y, b, activation)


@with_gradient
def _correlate(
    x: jax.Array, w: jax.Array, *, c: Correlation, transposed: bool
) -> WithBackward:
    def backward(dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        # y = x ⋆ w is linear in x and in w: each cotangent is the transpose applied to
        # dy. If y is the transpose of z ⋆ w in z instead, dx = dy ⋆ w, and x has the
        # role of the result's cotangent in dw.
        kernel = w.reshape(c.kernel)
        if transposed:
            dx = correlate(c, dy, kernel)
            dw = transpose_to_kernel(c, dy, x.reshape(c.result))
        else:
            dx = transpose_to_image(c, dy, kernel)
            dw = transpose_to_kernel(c, x.reshape(c.image), dy)
        return dx.reshape(x.shape), dw.reshape(w.shape)

    if transposed:
        y = transpose_to_image(c, x.reshape(c.result), w.reshape(c.kernel))
    else:
        y = correlate(c, x.reshape(c.image), w.reshape(c.kernel))
    return y, backward


def _layer(kind: str) -> Callable[..., jax.Array]:
    """Return the function of a convolution, which is not depthwise."""

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
        options = strides, padding, dilation, groups, activation
        return _convolve(kind, x, w, b, *options)

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
    options = strides, padding, dilation, channels, activation
    channel_dims = 1, channels * multiplier
    return _convolve("depthwise_conv2d", x, w, b, *options, channel_dims)
