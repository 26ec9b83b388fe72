"""add, sub, mul, div, scale, negative and abs."""

from __future__ import annotations

from placer.ops.common.checks import rowwise
from placer.ops.declaration import Attr, Case, Declaration
from placer.ops.elementwise.broadcasting import (
    BINARY,
    UNARY,
    binary_rule,
    grad_flops,
    infer_binary,
    infer_unary,
    result_flops,
)
from placer.types import TensorType

_CASES = (
    Case(("float32[batch, 8]", "float32[batch, 8]")),
    Case(("float32[batch, 8]", "float32[8]")),
    Case(("float32[batch, 8]", "float32[batch, 1]")),
    Case(("float32[batch, 1]", "float32[batch]")),
)

ADD = Declaration(
    "add",
    "The elementwise sum of two values, with broadcasting.",
    BINARY,
    infer_binary("add"),
    binary_rule,
    result_flops,
    grad_flops(0, 0),
    linear=lambda types, attrs: ((0, 1),),
    formula="out = a + b",
    cases=_CASES,
    example="{name: total, op: add, in: [h1, h2]}",
)
SUB = Declaration(
    "sub",
    "The elementwise difference of two values, with broadcasting.",
    BINARY,
    infer_binary("sub"),
    binary_rule,
    result_flops,
    grad_flops(0, 1),
    linear=lambda types, attrs: ((0, 1),),
    formula="out = a - b",
    cases=_CASES[:1],
    example="{name: error, op: sub, in: [prediction, target]}",
)
MUL = Declaration(
    "mul",
    "The elementwise product of two values, with broadcasting.",
    BINARY,
    infer_binary("mul"),
    binary_rule,
    result_flops,
    grad_flops(1, 1),
    linear=lambda types, attrs: ((0,), (1,)),
    saves=lambda types, attrs: (0, 1),
    formula="out = a · b",
    cases=_CASES[:2],
    example="{name: gated, op: mul, in: [h, gate]}",
)
DIV = Declaration(
    "div",
    "The elementwise quotient of two values, with broadcasting. Division by 0 gives"
    " ±inf, or NaN for 0 / 0, as in IEEE 754.",
    BINARY,
    infer_binary("div"),
    binary_rule,
    result_flops,
    grad_flops(1, 4),
    saves=lambda types, attrs: (0, 1),
    formula="out = a / b; da = dy / b; db = -(dy / b) · (a / b)",
    cases=_CASES[:2],
    example="{name: share, op: div, in: [part, whole]}",
)
SCALE = Declaration(
    "scale",
    "x times a constant, plus a constant.",
    UNARY,
    infer_unary("scale"),
    rowwise,
    lambda types, attrs: types[0].numel() * (2 if attrs["bias"] else 1),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    attrs=(
        Attr("factor", float, "the number that x is multiplied by", required=True),
        Attr("bias", float, "the number that is added to the product", default=0.0),
    ),
    linear=lambda types, attrs: () if attrs["bias"] else ((0,),),
    formula="out = factor · x + bias",
    cases=(
        Case(("float32[batch, 8]",), {"factor": 0.5}),
        Case(("float32[batch, 8]",), {"factor": 2.0, "bias": -1.0}),
    ),
    example="{name: penalty, op: scale, in: norm, factor: 1.0e-4}",
)
NEGATIVE = Declaration(
    "negative",
    "x with the opposite sign.",
    UNARY,
    infer_unary("negative"),
    rowwise,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    linear=lambda types, attrs: ((0,),),
    formula="out = -x",
    cases=(Case(("float32[batch, 8]",)),),
    example="{name: loss, op: negative, in: similarity}",
)
ABS = Declaration(
    "abs",
    "The absolute value, element by element. Its derivative at 0 is 0, as in JAX and"
    " PyTorch.",
    UNARY,
    infer_unary("abs"),
    rowwise,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    residuals=lambda types, attrs: (TensorType("int8", types[0].shape),),
    formula="out = |x|; dx = dy · sign(x)",
    cases=(Case(("float32[batch, 8]",)),),
    example="{name: distance, op: abs, in: error}",
)

DECLARATIONS = (ADD, SUB, MUL, DIV, SCALE, NEGATIVE, ABS)
