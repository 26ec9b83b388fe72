"""Convolutions, channels last, and their transposes: layers with a kernel `w`."""

from __future__ import annotations

from functools import partial

from placer.ops.common.checks import each_row
from placer.ops.declaration import Case, Declaration
from placer.ops.elementwise.activation import kept
from placer.ops.image.correlation import (
    Layer,
    attributes,
    flops,
    grad_flops,
    infer,
    linear,
    parameters,
)


def _declaration(
    layer: Layer,
    doc: str,
    formula: str,
    source: str,
    cases: tuple[Case, ...],
    example: str,
) -> Declaration:
    return Declaration(
        layer.kind,
        doc,
        layer.operands,
        partial(infer, layer),
        each_row,
        partial(flops, layer),
        partial(grad_flops, layer),
        attrs=attributes(layer),
        linear=linear,
        saves=lambda types, attrs: (0, 1),
        residuals=lambda types, attrs: kept(
            attrs["activation"], infer(layer, types, attrs)[0]
        ),
        parameters=partial(parameters, layer),
        formula=formula,
        source=source,
        cases=cases,
        example=example,
    )


_KERAS = (
    "`w` begins as Glorot and Bengio (2010) have it, `b` at 0; names, defaults and the"
    " padding of `same` are those of Keras' "
)

CONV1D = _declaration(
    Layer("conv1d", 1),
    "A window of weights slid along a sequence, with an optional activation; it makes"
    " its parameters `w` and `b`. `padding: [[n, 0]]` looks back only.",
    "out[i] = activation(Σ x[i · stride + k · dilation - before] · w[k] + b), the sum"
    " over k and the channels of the group",
    _KERAS + "Conv1D",
    (
        Case(("float32[batch, 100, 16]", "float32[5, 16, 32]", "float32[32]")),
        Case(
            ("float32[batch, 100, 16]", "float32[3, 16, 32]"),
            {"padding": [[4, 0]], "dilation": 2},
        ),
    ),
    "{name: c1, op: conv1d, in: tokens, filters: 32, kernel_size: 3, padding: same}",
)
CONV2D = _declaration(
    Layer("conv2d", 2),
    "A window of weights slid over an image, with an optional activation; it makes its"
    " parameters `w` and `b`.",
    "out[i, j] = activation(Σ x[i · stride + k · dilation - before, …] · w[k, l] + b),"
    " the sum over k, l and the channels of the group",
    _KERAS + "Conv2D",
    (
        Case(
            ("float32[batch, 28, 28, 1]", "float32[3, 3, 1, 32]", "float32[32]"),
            {"padding": "same", "activation": "relu"},
        ),
        Case(
            ("float32[batch, 28, 28, 32]", "float32[3, 3, 16, 64]"),
            {"strides": 2, "groups": 2},
        ),
    ),
    "{name: c1, op: conv2d, in: image, filters: 32, kernel_size: 3, padding: same,"
    " activation: relu}",
)
DEPTHWISE_CONV2D = _declaration(
    Layer("depthwise_conv2d", 2, "depthwise"),
    "Each channel convolved by itself, with `multiplier` filters that stand side by side"
    " in the result; it makes its parameters `w` and `b`.",
    "out[i, j, c · multiplier + m] = activation(Σ x[i · stride + k · dilation - before,"
    " …, c] · w[k, l, c, m] + b), the sum over k and l",
    _KERAS + "DepthwiseConv2D, whose `depth_multiplier` is `multiplier`",
    (
        Case(
            ("float32[batch, 28, 28, 32]", "float32[3, 3, 32, 1]", "float32[32]"),
            {"padding": "same"},
        ),
    ),
    "{name: d1, op: depthwise_conv2d, in: c1, kernel_size: 3, padding: same}",
)
CONV1D_TRANSPOSE = _declaration(
    Layer("conv1d_transpose", 1, "transpose"),
    "The transpose of the conv1d that has these attributes and this `w`: each element"
    " adds a window of weights to the result.",
    "out[i · stride + k · dilation - before] += x[i] · w[k]ᵀ; then b and the activation",
    _KERAS + "Conv1DTranspose",
    (
        Case(
            ("float32[batch, 25, 16]", "float32[4, 8, 16]", "float32[8]"),
            {"strides": 2, "padding": "same"},
        ),
    ),
    "{name: up, op: conv1d_transpose, in: h, filters: 8, kernel_size: 4, strides: 2}",
)
CONV2D_TRANSPOSE = _declaration(
    Layer("conv2d_transpose", 2, "transpose"),
    "The transpose of the conv2d that has these attributes and this `w`: each element"
    " adds a window of weights to the result. The result has size · stride elements"
    " where padding is same, and what its windows cover where it is valid; a padding in"
    " numbers is taken off that.",
    "out[i · stride + k · dilation - before, …] += x[i, j] · w[k, l]ᵀ; then b and the"
    " activation",
    _KERAS + "Conv2DTranspose",
    (
        Case(
            ("float32[batch, 7, 7, 32]", "float32[3, 3, 16, 32]", "float32[16]"),
            {"strides": 2, "padding": "same"},
        ),
        Case(
            ("float32[batch, 7, 7, 32]", "float32[4, 4, 16, 32]"),
            {"strides": 2, "padding": 1},
        ),
    ),
    "{name: up, op: conv2d_transpose, in: h, filters: 16, kernel_size: 3, strides: 2,"
    " padding: same}",
)

DECLARATIONS = (CONV1D, CONV2D, DEPTHWISE_CONV2D, CONV1D_TRANSPOSE, CONV2D_TRANSPOSE)
