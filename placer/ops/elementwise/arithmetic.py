"""add, sub, mul, div, scale, negative and abs."""

from __future__ import annotations

from placer.ops.common.costs import flops_per_element, grad_flops_per_element
from placer.ops.declaration import Attr, Declaration, case, required
from placer.ops.elementwise.broadcasting import (
    UNARY,
    declare_binary,
    declare_unary,
    grad_flops,
)
from placer.place.types import TensorType

_CASES = (
    case("float32[batch, 8], float32[batch, 8]"),
    case("float32[batch, 8], float32[8]"),
    case("float32[batch, 8], float32[batch, 1]"),
    case("float32[batch, 1], float32[batch]"),
)

ADD = declare_binary(
    "add",
    "The elementwise sum of two values, with broadcasting.",
    grad_flops=grad_flops(0, 0),
    formula="out = a + b",
    linear=lambda types, attrs: ((0, 1),),
    cases=_CASES,
)
SUB = declare_binary(
    "sub",
    "The elementwise difference of two values, with broadcasting.",
    grad_flops=grad_flops(0, 1),
    formula="out = a - b",
    linear=lambda types, attrs: ((0, 1),),
    cases=_CASES[:1],
)
MUL = declare_binary(
    "mul",
    "The elementwise product of two values, with broadcasting.",
    grad_flops=grad_flops(1, 1),
    formula="out = a · b",
    linear=lambda types, attrs: ((0,), (1,)),
    saves=lambda types, attrs: (0, 1),
    cases=_CASES[:2],
)
DIV = declare_binary(
    "div",
    "The elementwise quotient of two values, with broadcasting. Division by 0 gives"
    " ±inf, or NaN for 0 / 0, as in IEEE 754.",
    grad_flops=grad_flops(1, 4),
    formula="out = a / b; da = dy / b; db = -(dy / b) · (a / b)",
    saves=lambda types, attrs: (0, 1),
    cases=_CASES[:2],
)
SCALE = Declaration(
    "scale",
    "The product of x and a constant, plus another constant.",
    UNARY,
    flops=lambda types, attrs: types[0].numel() * (2 if attrs["bias"] else 1),
    grad_flops=grad_flops_per_element(1),
    attrs=(
        required("factor", float, "the factor"),
        Attr("bias", float, "the number to add to the product", default=0.0),
    ),
    linear=lambda types, attrs: () if attrs["bias"] else ((0,),),
    formula="out = factor · x + bias",
    cases=(
        case("float32[batch, 8]", factor=0.5),
        case("float32[batch, 8]", factor=2.0, bias=-1.0),
    ),
)
NEGATIVE = declare_unary(
    "negative",
    "The negative of x, element by element.",
    flops=flops_per_element(1),
    grad_flops=grad_flops_per_element(1),
    formula="out = -x",
    linear=lambda types, attrs: ((0,),),
)
ABS = declare_unary(
    "abs",
    "The absolute value, element by element. Its derivative at 0 is 0, as in"
    " PyTorch; JAX uses 1.",
    flops=flops_per_element(1),
    grad_flops=grad_flops_per_element(1),
    formula="out = |x|; dx = dy · sign(x)",
    residuals=lambda types, attrs: (TensorType("int8", types[0].shape),),
)
