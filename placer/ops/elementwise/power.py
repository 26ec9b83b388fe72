"""square, sqrt, pow, exp and log."""

from __future__ import annotations

from math import isfinite

from placer.ops.common.checks import check_attr
from placer.ops.common.costs import flops_per_element, grad_flops_per_element
from placer.ops.declaration import Attrs, Declaration, case, required
from placer.ops.elementwise.broadcasting import UNARY, declare_unary
from placer.ops.operand import Types
from placer.place.types import TensorType

SQUARE = declare_unary(
    "square",
    "The square of x, element by element.",
    flops=flops_per_element(1),
    grad_flops=grad_flops_per_element(2),
    formula="out = x²; dx = 2 · x · dy",
    saves=lambda types, attrs: (0,),
)
SQRT = declare_unary(
    "sqrt",
    "The square root, element by element; NaN for a negative value. Its derivative at 0"
    " is inf, as in JAX.",
    flops=flops_per_element(1),
    grad_flops=grad_flops_per_element(2),
    formula="out = √x; dx = dy / (2 · out)",
    residuals=lambda types, attrs: (types[0],),
    cases=(case("float32[batch]"),),
)


def _infer_pow(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    finite = isfinite(attrs["exponent"])
    check_attr(attrs, "exponent", finite, "a finite exponent")
    return (types[0],)


def _pow_flops(types: Types, attrs: Attrs) -> int:
    return types[0].numel() if attrs["exponent"] not in (0, 1) else 0


POW = Declaration(
    "pow",
    "x to the power of a constant. An integer exponent is computed by"
    " multiplication, even for negative x. For another exponent, a negative x"
    " gives NaN. x⁰ is 1 for every x, with derivative 0. For other exponents"
    " below 1, the derivative at 0 is infinite.",
    UNARY,
    _infer_pow,
    flops=_pow_flops,
    grad_flops=lambda types, attrs, wrt: 3 * _pow_flops(types, attrs) * len(wrt),
    attrs=(required("exponent", float, "the exponent, finite"),),
    linear=lambda types, attrs: ((0,),) if attrs["exponent"] == 1 else (),
    saves=lambda types, attrs: () if attrs["exponent"] in (0, 1) else (0,),
    formula="out = x^exponent; dx = dy · exponent · x^(exponent - 1)",
    cases=(
        case("float32[batch, 8]", exponent=3.0),
        case("float32[batch, 8]", exponent=-0.5),
    ),
)
EXP = declare_unary(
    "exp",
    "The exponential of x, element by element.",
    flops=flops_per_element(1),
    grad_flops=grad_flops_per_element(1),
    formula="out = e^x; dx = dy · out",
    residuals=lambda types, attrs: (types[0],),
)
LOG = declare_unary(
    "log",
    "The natural logarithm, element by element: -inf for 0, NaN for a negative value.",
    flops=flops_per_element(1),
    grad_flops=grad_flops_per_element(1),
    formula="out = log x; dx = dy / x",
    saves=lambda types, attrs: (0,),
)
