"""greater, less, equal, where, maximum, minimum and clip."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.common.checks import broadcast_shapes
from placer.ops.common.costs import grad_flops_per_element
from placer.ops.declaration import Attr, Attrs, Declaration, case
from placer.ops.elementwise.broadcasting import (
    BROADCAST,
    UNARY,
    binary_rule,
    declare_binary,
    grad_flops,
    result_flops,
)
from placer.ops.operand import INTEGERS, Operand, Types, require_same_dtype
from placer.place.types import TensorType

_CASES = (
    case("float32[batch, 8], float32[batch, 8]"),
    case("float32[batch, 8], float32[]"),
)

_NUMBERS = (
    Operand("a", "float or integer, any shape", dtype="number"),
    Operand("b", BROADCAST, dtype="number", same="dtype"),
)


def _declare_condition(kind: str, symbol: str, note: str = "") -> Declaration:
    return Declaration(
        kind,
        f"a {symbol} b, element by element, with broadcasting: a condition for `where`."
        f"{note} It has no gradient.",
        _NUMBERS,
        lambda types, attrs: (TensorType("bool", broadcast_shapes(types)),),
        binary_rule,
        result_flops,
        differentiable=False,
        formula=f"out = a {symbol} b",
        cases=(*_CASES, case("int32[batch, 20], int32[]")),
    )


GREATER = _declare_condition("greater", ">")
LESS = _declare_condition("less", "<")
EQUAL = _declare_condition("equal", "=", " NaN is not equal to anything.")


def _infer_where(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    if types[0].dtype not in INTEGERS | {"bool"}:
        raise OpError(
            f"needs a bool or integer operand as 'condition', not {types[0]}",
            operand=0,
            hint="use greater, less or equal to compute a bool"
            if types[0].is_float
            else None,
        )
    require_same_dtype(("condition", "a", "b"), types, 2, first=1)
    return (
        TensorType(types[1].dtype, broadcast_shapes(types, ("condition", "a", "b"))),
    )


WHERE = Declaration(
    "where",
    "Selects a where a condition is true and b elsewhere, with broadcasting."
    " Elements that are not selected receive a gradient of 0. If an earlier op"
    " has an infinite derivative there, its gradient is 0 · inf = NaN.",
    (
        Operand("condition", "bool, or an integer (0 is false)"),
        Operand("a", "float, the result where the condition is true", dtype="float"),
        Operand(
            "b",
            "the same dtype, the result elsewhere; all three are broadcast",
            dtype="float",
        ),
    ),
    _infer_where,
    binary_rule,
    result_flops,
    grad_flops(0, 1, 1),
    linear=lambda types, attrs: ((1, 2),),
    saves=lambda types, attrs: (0,),
    formula="out = a where condition, else b",
    cases=(
        case("bool[batch, 8], float32[batch, 8], float32[batch, 8]"),
        case("int32[batch, 1], float32[batch, 8], float32[]"),
    ),
)


def _order(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType("int8", broadcast_shapes(types)),)


def _declare_extremum(kind: str, word: str, symbol: str) -> Declaration:
    return declare_binary(
        kind,
        f"The elementwise {kind} of two values, with broadcasting; NaN if either"
        " is NaN. If they are equal, each receives half of the gradient, as in"
        " JAX and PyTorch.",
        grad_flops=grad_flops(2, 2),
        residuals=_order,
        formula=f"out = {word}(a, b); da = dy where a {symbol} b, dy / 2 where a = b,"
        " else 0",
        cases=_CASES,
    )


MAXIMUM = _declare_extremum("maximum", "max", ">")
MINIMUM = _declare_extremum("minimum", "min", "<")


def _infer_clip(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    low, high = attrs["min"], attrs["max"]
    if low is None and high is None:
        raise OpError("needs min, max or both")
    if low is not None and high is not None and not low <= high:
        raise OpError(f"has min {low} above max {high}", attr="min")
    return (types[0],)


def _count_bounds(attrs: Attrs) -> int:
    return sum(attrs[name] is not None for name in ("min", "max"))


CLIP = Declaration(
    "clip",
    "Limits x to the interval from `min` to `max`. NaN stays NaN. The gradient is"
    " 1 between the bounds and on them, as in PyTorch and TensorFlow; JAX halves"
    " it on a bound. At least one bound is required.",
    UNARY,
    _infer_clip,
    flops=lambda types, attrs: _count_bounds(attrs) * types[0].numel(),
    grad_flops=grad_flops_per_element(1),
    attrs=(
        Attr("min", float | None, "the lower bound; null: no bound"),
        Attr("max", float | None, "the upper bound; null: no bound"),
    ),
    residuals=lambda types, attrs: (TensorType("bool", types[0].shape),),
    formula="out = min(max(x, min), max); dx = dy where min ≤ x ≤ max, else 0",
    cases=(
        case("float32[batch, 8]", min=-1.0, max=1.0),
        case("float32[batch, 8]", max=6.0),
    ),
)
