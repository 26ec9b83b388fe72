"""square, sqrt, pow, exp and log."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from placer.errors import OpError
from placer.ops.common.checks import rowwise
from placer.ops.declaration import Attr, Attrs, Case, Declaration, Types
from placer.ops.elementwise.broadcasting import UNARY, infer_unary
from placer.types import TensorType

SQUARE = Declaration(
    "square",
    "The square of x, element by element.",
    UNARY,
    infer_unary("square"),
    rowwise,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: 2 * types[0].numel() * len(wrt),
    saves=lambda types, attrs: (0,),
    formula="out = x²; dx = 2 · x · dy",
    cases=(Case(("float32[batch, 8]",)),),
    example="{name: energy, op: square, in: h}",
)
SQRT = Declaration(
    "sqrt",
    "The square root, element by element; NaN for a negative value. Its derivative at 0"
    " is inf, as in JAX.",
    UNARY,
    infer_unary("sqrt"),
    rowwise,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: 2 * types[0].numel() * len(wrt),
    residuals=lambda types, attrs: (types[0],),
    formula="out = √x; dx = dy / (2 · out)",
    cases=(Case(("float32[batch]",)),),
    example="{name: rmse, op: sqrt, in: mse}",
)


def _infer_pow(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    result = infer_unary("pow")(types, attrs)
    if not isfinite(attrs["exponent"]):
        raise OpError(
            f"pow needs a finite exponent, not {attrs['exponent']}", attr="exponent"
        )
    return result


def _pow_flops(types: Types, attrs: Attrs) -> int:
    return types[0].numel() if attrs["exponent"] not in (0, 1) else 0


def _pow_grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    return 3 * _pow_flops(types, attrs) * len(wrt)


POW = Declaration(
    "pow",
    "x to the power of a constant. An integral exponent is computed by multiplication,"
    " also for negative x; for another exponent a negative x gives NaN. x⁰ is 1 for"
    " every x, with derivative 0. The derivative at 0 is infinite for other exponents"
    " below 1.",
    UNARY,
    _infer_pow,
    rowwise,
    _pow_flops,
    _pow_grad_flops,
    attrs=(Attr("exponent", float, "the exponent, finite", required=True),),
    linear=lambda types, attrs: ((0,),) if attrs["exponent"] == 1 else (),
    saves=lambda types, attrs: () if attrs["exponent"] in (0, 1) else (0,),
    formula="out = x^exponent; dx = dy · exponent · x^(exponent - 1)",
    cases=(
        Case(("float32[batch, 8]",), {"exponent": -0.5}),
        Case(("float32[batch, 8]",), {"exponent": 3.0}),
    ),
    example="{name: cubes, op: pow, in: x, exponent: 3}",
)
EXP = Declaration(
    "exp",
    "The exponential of x, element by element.",
    UNARY,
    infer_unary("exp"),
    rowwise,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    residuals=lambda types, attrs: (types[0],),
    formula="out = e^x; dx = dy · out",
    cases=(Case(("float32[batch, 8]",)),),
    example="{name: rate, op: exp, in: log_rate}",
)
LOG = Declaration(
    "log",
    "The natural logarithm, element by element: -inf for 0, NaN for a negative value.",
    UNARY,
    infer_unary("log"),
    rowwise,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    saves=lambda types, attrs: (0,),
    formula="out = log x; dx = dy / x",
    cases=(Case(("float32[batch, 8]",)),),
    example="{name: log_price, op: log, in: price}",
)

DECLARATIONS = (SQUARE, SQRT, POW, EXP, LOG)
