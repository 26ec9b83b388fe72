"""Convolutions and transposed convolutions.

The backward needs only x and w. A 1D convolution is computed as a 2D convolution over
images of height 1, because XLA's 1D convolution is slower.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import jax

from ..common.gradient_jax import WithBackward, with_gradient
from ..linear.weighted_jax import add_bias_and_activate
from .correlation_jax import (
    Correlation,
    correlate,
    transpose_to_image,
    transpose_to_kernel,
)
from .windows import Padding, Sizes, checked_windows


@with_gradient
def _correlate(
    x: jax.Array, w: jax.Array, *, c: Correlation, transposed: bool
) -> WithBackward:
    def backward(dy: jax.Array) -> tuple[jax.Array, jax.Array]:
        # y = x ⋆ w is linear in x and in w, so each cotangent is a transpose applied to
        # dy. A transposed convolution swaps the roles of image and result: dx = dy ⋆ w,
        # and dw correlates dy (the image) with x (the cotangent of the result).
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
    transposed, depthwise = kind.endswith("transpose"), kind.startswith("depthwise")

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
        rows, sizes, window = x.shape[0], x.shape[1:-1], w.shape[: x.ndim - 2]
        slide = checked_windows(
            sizes, window, strides, padding, dilation, transposed=transposed
        )
        of_group, out = (1, prod(w.shape[-2:])) if depthwise else w.shape[-2:]
        images = slide.over_images()
        c = Correlation(
            images.windows,
            groups,
            (rows, *images.image, of_group * groups),
            (*(window.size for window in images.windows), of_group, out),
            (rows, *images.outputs, out),
        )
        y = _correlate(x, w, c=c, transposed=transposed)
        image = slide.image if transposed else slide.outputs
        return add_bias_and_activate(
            y.reshape(rows, *image, y.shape[-1]), b, activation
        )

    return function


conv1d = _layer("conv1d")
conv2d = _layer("conv2d")
conv1d_transpose = _layer("conv1d_transpose")
conv2d_transpose = _layer("conv2d_transpose")
_depthwise_conv2d = _layer("depthwise_conv2d")


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
    slide = {"strides": strides, "padding": padding, "dilation": dilation}
    return _depthwise_conv2d(x, w, b, **slide, groups=w.shape[2], activation=activation)
