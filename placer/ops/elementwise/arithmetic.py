"""add, sub, mul, div, scale, negative, abs: sums, products and signs."""

from __future__ import annotations

from placer.ops.common.checks import each_row
from placer.ops.declaration import Attr, Case, Declaration
from placer.ops.elementwise.broadcasting import (
    ONE,
    PAIR,
    grad_flops,
    infer_one,
    infer_pair,
    once,
    rows,
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
    "The sum of two values.",
    PAIR,
    infer_pair("add"),
    rows,
    once,
    grad_flops(0, 0),
    linear=lambda types, attrs: ((0, 1),),
    formula="out = a + b",
    cases=_CASES,
    example="{name: total, op: add, in: [h1, h2]}",
)
SUB = Declaration(
    "sub",
    "The difference of two values.",
    PAIR,
    infer_pair("sub"),
    rows,
    once,
    grad_flops(0, 1),
    linear=lambda types, attrs: ((0, 1),),
    formula="out = a - b",
    cases=_CASES[:1],
    example="{name: error, op: sub, in: [prediction, target]}",
)
MUL = Declaration(
    "mul",
    "The elementwise product of two values.",
    PAIR,
    infer_pair("mul"),
    rows,
    once,
    grad_flops(1, 1),
    linear=lambda types, attrs: ((0,), (1,)),
    saves=lambda types, attrs: (0, 1),
    formula="out = a · b",
    cases=_CASES[:2],
    example="{name: gated, op: mul, in: [h, gate]}",
)
DIV = Declaration(
    "div",
    "The elementwise quotient of two values; x / 0 is inf or NaN as IEEE 754 has it.",
    PAIR,
    infer_pair("div"),
    rows,
    once,
    grad_flops(1, 4),
    saves=lambda types, attrs: (0, 1),
    formula="out = a / b; da = dy / b; db = -(dy / b) · (a / b)",
    cases=_CASES[:2],
    example="{name: share, op: div, in: [part, whole]}",
)
SCALE = Declaration(
    "scale",
    "A value times a number, plus a number.",
    ONE,
    infer_one("scale"),
    each_row,
    lambda types, attrs: types[0].numel() * (2 if attrs["bias"] else 1),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    attrs=(
        Attr("factor", float, "what x is multiplied by", required=True),
        Attr("bias", float, "what is added afterwards", default=0.0),
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
    "The value with the other sign.",
    ONE,
    infer_one("negative"),
    each_row,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    linear=lambda types, attrs: ((0,),),
    formula="out = -x",
    cases=(Case(("float32[batch, 8]",)),),
    example="{name: loss, op: negative, in: similarity}",
)
ABS = Declaration(
    "abs",
    "The magnitude. Its derivative at 0 is 0, as JAX and PyTorch have it.",
    ONE,
    infer_one("abs"),
    each_row,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    residuals=lambda types, attrs: (TensorType("int8", types[0].shape),),
    formula="out = |x|; dx = dy · sign(x)",
    cases=(Case(("float32[batch, 8]",)),),
    example="{name: distance, op: abs, in: error}",
)

DECLARATIONS = (ADD, SUB, MUL, DIV, SCALE, NEGATIVE, ABS)
