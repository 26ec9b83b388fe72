"""Convolutions and transposed convolutions, with the channels last."""

from __future__ import annotations

from functools import partial
from typing import Any

from placer.ops.declaration import Declaration, case
from placer.ops.image.correlation import (
    ConvLayer,
    infer,
    make_attributes,
    make_parameters,
    product_flops,
)
from placer.ops.linear.weighted import declare_weighted


def _declare(layer: ConvLayer, doc: str, **fields: Any) -> Declaration:
    return declare_weighted(
        layer.kind,
        doc,
        layer.operands,
        partial(infer, layer),
        partial(product_flops, layer),
        attrs=make_attributes(layer),
        creates=partial(make_parameters, layer),
        **fields,
    )


_KERAS = (
    "initial `w` as in Glorot and Bengio (2010), `b` 0; names, defaults and"
    " `padding: same` as in Keras' "
)

CONV1D = _declare(
    ConvLayer("conv1d", 1),
    "1D convolution over a sequence, followed by an activation. For a causal"
    " convolution, set `padding: [[n, 0]]` with n = (kernel_size - 1) · dilation."
    " Creates the parameters `w` and `b`.",
    formula="out[i] = activation(Σ x[i · stride + k · dilation - before] · w[k] + b),"
    " summed over k and the channels of the group",
    source=_KERAS + "Conv1D",
    cases=(
        case("float32[batch, 100, 16], float32[5, 16, 32], float32[32]"),
        case(
            "float32[batch, 100, 16], float32[3, 16, 32]", padding=[[4, 0]], dilation=2
        ),
    ),
)
CONV2D = _declare(
    ConvLayer("conv2d", 2),
    "2D convolution over images, followed by an activation. As in Keras and"
    " PyTorch, it is a cross-correlation: `w` is not flipped. Creates the"
    " parameters `w` and `b`.",
    formula="out[i, j] = activation(Σ x[i · stride + k · dilation - before, …] · w[k,"
    " l] + b), summed over k, l and the channels of the group",
    source=_KERAS + "Conv2D",
    cases=(
        case(
            "float32[batch, 28, 28, 1], float32[3, 3, 1, 32], float32[32]",
            padding="same",
            activation="relu",
        ),
        case("float32[batch, 28, 28, 32], float32[3, 3, 16, 64]", strides=2, groups=2),
    ),
)
DEPTHWISE_CONV2D = _declare(
    ConvLayer("depthwise_conv2d", 2, "depthwise"),
    "Depthwise 2D convolution, followed by an activation. Each channel is"
    " convolved separately with `multiplier` filters. The result has channels ·"
    " multiplier channels. Creates the parameters `w` and `b`.",
    formula="out[i, j, c · multiplier + m] = activation(Σ x[i · stride + k · dilation -"
    " before, …, c] · w[k, l, c, m] + b), summed over k and l",
    source=_KERAS + "DepthwiseConv2D, whose `depth_multiplier` is `multiplier`",
    cases=(
        case(
            "float32[batch, 28, 28, 32], float32[3, 3, 32, 1], float32[32]",
            padding="same",
        ),
    ),
)
CONV1D_TRANSPOSE = _declare(
    ConvLayer("conv1d_transpose", 1, "transpose"),
    "Transposed 1D convolution, followed by an activation. It is the transpose"
    " (gradient) of conv1d with the same attributes and `w`. The size of the"
    " result follows the same rule as in conv2d_transpose. Creates the parameters"
    " `w` and `b`.",
    formula="out[i · stride + k · dilation - before] += x[i] · w[k]ᵀ; then b and the"
    " activation",
    source=_KERAS + "Conv1DTranspose",
    cases=(
        case(
            "float32[batch, 25, 16], float32[4, 8, 16], float32[8]",
            strides=2,
            padding="same",
        ),
    ),
)
CONV2D_TRANSPOSE = _declare(
    ConvLayer("conv2d_transpose", 2, "transpose"),
    "Transposed 2D convolution, followed by an activation. It is the transpose"
    " (gradient) of conv2d with the same attributes and `w`. With `padding:"
    " same`, each dimension of the result has size · stride elements. With"
    " `valid`, the result has all elements that the windows cover. Padding given"
    " as numbers reduces the `valid` size. Creates the parameters `w` and `b`.",
    formula="out[i · stride + k · dilation - before, …] += x[i, j] · w[k, l]ᵀ; then b"
    " and the activation",
    source=_KERAS + "Conv2DTranspose",
    cases=(
        case(
            "float32[batch, 7, 7, 32], float32[3, 3, 16, 32], float32[16]",
            strides=2,
            padding="same",
        ),
        case("float32[batch, 7, 7, 32], float32[4, 4, 16, 32]", strides=2, padding=1),
    ),
)
