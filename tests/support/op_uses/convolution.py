"""Convolutions and transposed convolutions.

The plain formula is a product with a table for each dimension, which maps the taps of
each output to elements.
"""

import jax.numpy as jnp
import numpy as np

from support.op_use import Use
from support.op_uses.activation import PLAIN as PLAIN_ACTIVATIONS


def per_dimension(value, dims):
    return [value] * dims if isinstance(value, int) else list(value)


def padding_of(padding, at, size, window, stride, dilation):
    """Return the padding before and after dimension `at`, which has `size` elements."""
    if padding == "valid":
        return 0, 0
    if padding == "same":
        outputs = -(-size // stride)
        missing = (outputs - 1) * stride + (window - 1) * dilation + 1 - size
        return max(missing, 0) // 2, (max(missing, 0) + 1) // 2
    return (padding, padding) if isinstance(padding, int) else padding[at]


def tap_table(size, window, stride, dilation, before, after):
    """Return [tap, output, element]: 1 where the tap of the output is the element."""
    last = size + before + after - (window - 1) * dilation - 1
    outputs = last // stride + 1
    result = np.zeros((window, outputs, size))
    for tap in range(window):
        for output in range(outputs):
            element = output * stride + tap * dilation - before
            if 0 <= element < size:
                result[tap, output, element] = 1
    return result


def tap_tables(image, window, strides, padding, dilation):
    dims = len(image)
    if dims == 1:
        image, window = (1, *image), (1, *window)
        padding = [[0, 0], *padding] if isinstance(padding, list) else padding
        strides, dilation = (
            [1, *per_dimension(strides, 1)],
            [1, *per_dimension(dilation, 1)],
        )
    result = []
    for at, (n, k, s, d) in enumerate(
        zip(
            image,
            window,
            per_dimension(strides, 2),
            per_dimension(dilation, 2),
            strict=True,
        )
    ):
        pair = (0, 0) if dims < 2 and at == 0 else padding_of(padding, at, n, k, s, d)
        result.append(tap_table(n, k, s, d, *pair))
    return result


def add_bias_and_activate(y, b, activation):
    y = y + b
    return y if activation == "none" else PLAIN_ACTIVATIONS[activation](y)


def plain_conv(
    x,
    w,
    b=0.0,
    strides=1,
    padding="valid",
    dilation=1,
    groups=1,
    activation="none",
):
    dims = x.ndim - 2
    rows, columns = tap_tables(
        x.shape[1:-1], w.shape[:dims], strides, padding, dilation
    )
    x = x if dims == 2 else x[:, None]
    w = w if dims == 2 else w[None]
    x = x.reshape(*x.shape[:-1], groups, -1)
    w = w.reshape(*w.shape[:-1], groups, -1)
    y = jnp.einsum("khp,lwq,npqgc,klcgo->nhwgo", rows, columns, x, w)
    y = y.reshape(*y.shape[:3], -1)
    return add_bias_and_activate(y if dims == 2 else y[:, 0], b, activation)


def plain_depthwise(
    x, w, b=0.0, strides=1, padding="valid", dilation=1, activation="none"
):
    rows, columns = tap_tables(x.shape[1:-1], w.shape[:2], strides, padding, dilation)
    y = jnp.einsum("khp,lwq,npqc,klcm->nhwcm", rows, columns, x, w)
    return add_bias_and_activate(y.reshape(*y.shape[:3], -1), b, activation)


def plain_transpose(
    x,
    w,
    b=0.0,
    strides=1,
    padding="valid",
    dilation=1,
    groups=1,
    activation="none",
):
    dims = x.ndim - 2
    image = []
    for at, (n, k, s, d) in enumerate(
        zip(
            x.shape[1:-1],
            w.shape,
            per_dimension(strides, dims),
            per_dimension(dilation, dims),
            strict=False,
        )
    ):
        span = (k - 1) * d + 1
        if padding == "same":
            image.append(n * s)
        elif padding == "valid":
            image.append((n - 1) * s + max(span, s))
        else:
            image.append((n - 1) * s + span - sum(padding_of(padding, at, n, k, s, d)))
    rows, columns = tap_tables(image, w.shape[:dims], strides, padding, dilation)
    x = x if dims == 2 else x[:, None]
    w = w if dims == 2 else w[None]
    x = x.reshape(*x.shape[:-1], groups, -1)
    w = w.reshape(*w.shape[:-1], groups, -1)
    y = jnp.einsum("khp,lwq,nhwgo,klcgo->npqgc", rows, columns, x, w)
    y = y.reshape(*y.shape[:3], -1)
    return add_bias_and_activate(y if dims == 2 else y[:, 0], b, activation)


IMAGE, KERNEL, BIAS = "float32[batch, 6, 5, 4]", "float32[3, 2, 4, 6]", "float32[6]"

DIFFERENTIABLE = [
    Use("conv1d", ("float32[batch, 8, 3]", "float32[3, 3, 4]", "float32[4]")),
    Use("conv1d", ("float32[5, 8, 3]", "float32[3, 3, 4]"), {"padding": "same"}),
    Use(
        "conv1d",
        ("float32[batch, 8, 4]", "float32[3, 2, 6]", "float32[6]"),
        {"padding": [[4, 0]], "dilation": 2, "groups": 2, "activation": "relu"},
    ),
    Use(
        "conv1d",
        ("float32[batch, 9, 1]", "float32[4, 1, 2]"),
        {"strides": [3], "padding": "same"},
    ),
    Use("conv2d", (IMAGE, KERNEL, BIAS)),
    Use("conv2d", ("float32[3, 6, 5, 4]", KERNEL), {"padding": "same"}),
    Use("conv2d", (IMAGE, KERNEL), {"strides": 2, "padding": "same"}),
    Use("conv2d", (IMAGE, KERNEL), {"strides": [1, 3], "padding": 1}),
    Use("conv2d", (IMAGE, KERNEL), {"dilation": [2, 1], "padding": [[0, 3], [1, 0]]}),
    Use("conv2d", (IMAGE, "float32[1, 1, 4, 6]"), {"strides": 2}),
    *(
        Use("conv2d", (IMAGE, KERNEL, BIAS), {"activation": activation})
        for activation in ("relu", "gelu", "softmax")
    ),
    Use(
        "conv2d",
        (IMAGE, "float32[3, 2, 2, 6]", BIAS),
        {"groups": 2, "strides": 2, "padding": "same"},
    ),
    Use(
        "conv2d",
        (IMAGE, "float32[3, 2, 1, 8]"),
        {"groups": 4, "strides": [2, 1], "padding": [[2, 1], [0, 1]], "dilation": 2},
    ),
    Use("depthwise_conv2d", (IMAGE, "float32[3, 2, 4, 1]", "float32[4]")),
    Use(
        "depthwise_conv2d",
        (IMAGE, "float32[3, 3, 4, 2]", "float32[8]"),
        {"strides": 2, "padding": "same", "activation": "tanh"},
    ),
    Use("depthwise_conv2d", ("float32[batch, 4, 4, 1]", "float32[2, 2, 1, 3]")),
    Use("conv1d_transpose", ("float32[batch, 4, 3]", "float32[3, 2, 3]", "float32[2]")),
    Use(
        "conv1d_transpose",
        ("float32[batch, 4, 3]", "float32[4, 2, 3]"),
        {"strides": 2, "padding": "same"},
    ),
    Use("conv2d_transpose", ("float32[batch, 3, 4, 6]", KERNEL, "float32[4]")),
    Use(
        "conv2d_transpose",
        ("float32[batch, 3, 4, 6]", KERNEL),
        {"strides": [2, 4], "padding": "valid"},
    ),
    Use(
        "conv2d_transpose",
        ("float32[batch, 3, 4, 6]", "float32[3, 2, 2, 6]", "float32[4]"),
        {"strides": [2, 3], "padding": "same", "groups": 2, "activation": "relu"},
    ),
    Use(
        "conv2d_transpose",
        ("float32[3, 3, 4, 6]", KERNEL),
        {"strides": 2, "padding": [[1, 0], [0, 1]], "dilation": [2, 1]},
    ),
    Use(
        "conv2d_transpose",
        ("float32[batch, 3, 4, 4]", "float32[3, 2, 1, 4]"),
        {"strides": 2, "padding": 1, "groups": 4},
    ),
]

WITHOUT_GRADIENT: list[Use] = []

PLAIN = {
    "conv1d": plain_conv,
    "conv2d": plain_conv,
    "depthwise_conv2d": plain_depthwise,
    "conv1d_transpose": plain_transpose,
    "conv2d_transpose": plain_transpose,
}
