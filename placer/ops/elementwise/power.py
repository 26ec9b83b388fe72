"""square, sqrt, pow, exp, log: powers and logarithms, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from placer.errors import OpError
from placer.ops.common.checks import each_row
from placer.ops.declaration import Attr, Attrs, Case, Declaration, Types
from placer.ops.elementwise.broadcasting import ONE, infer_one
from placer.types import TensorType

SQUARE = Declaration(
    "square",
    "The value times itself.",
    ONE,
    infer_one("square"),
    each_row,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: 2 * types[0].numel() * len(wrt),
    saves=lambda types, attrs: (0,),
    formula="out = x²; dx = 2 · x · dy",
    cases=(Case(("float32[batch, 8]",)),),
    example="{name: energy, op: square, in: h}",
)
SQRT = Declaration(
    "sqrt",
    "The square root, element by element. Its derivative at 0 is inf, as JAX has it.",
    ONE,
    infer_one("sqrt"),
    each_row,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: 2 * types[0].numel() * len(wrt),
    residuals=lambda types, attrs: (types[0],),
    formula="out = √x; dx = dy / (2 · out)",
    cases=(Case(("float32[batch]",)),),
    example="{name: rmse, op: sqrt, in: mse}",
)


def _infer_pow(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    result = infer_one("pow")(types, attrs)
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
    "The value to a fixed power. A whole exponent multiplies, so that negative values"
    " have powers too; of another exponent they give NaN. x to the 0 is 1 for every x,"
    " and has no slope. A slope at 0 is inf where the exponent is below 1.",
    ONE,
    _infer_pow,
    each_row,
    _pow_flops,
    _pow_grad_flops,
    attrs=(Attr("exponent", float, "the power, finite", required=True),),
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
    "The exponential.",
    ONE,
    infer_one("exp"),
    each_row,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    residuals=lambda types, attrs: (types[0],),
    formula="out = e^x; dx = dy · out",
    cases=(Case(("float32[batch, 8]",)),),
    example="{name: rate, op: exp, in: log_rate}",
)
LOG = Declaration(
    "log",
    "The natural logarithm: of 0 it is -inf, of a negative value NaN.",
    ONE,
    infer_one("log"),
    each_row,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    saves=lambda types, attrs: (0,),
    formula="out = log x; dx = dy / x",
    cases=(Case(("float32[batch, 8]",)),),
    example="{name: log_price, op: log, in: price}",
)

DECLARATIONS = (SQUARE, SQRT, POW, EXP, LOG)
