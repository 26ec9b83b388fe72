"""greater, less, equal, where, maximum, minimum and clip."""

from __future__ import annotations

from collections.abc import Callable

from placer.errors import OpError
from placer.ops.common.checks import (
    INTEGERS,
    broadcast_shapes,
    check_arity,
    require_float,
    require_integer,
    require_same_dtype,
    rowwise,
)
from placer.ops.declaration import Attr, Attrs, Case, Declaration, Operand, Types
from placer.ops.elementwise.broadcasting import (
    BINARY,
    BINARY_NAMES,
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
    Case(("float32[batch, 8]", "float32[]")),
)

_NUMBERS = (
    Operand("a", "float or integer, any shape"),
    Operand("b", "the same dtype; a and b are broadcast to each other"),
)


def _infer_comparison(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        check_arity(kind, _NUMBERS, types)
        for index, name in enumerate(BINARY_NAMES):
            if not types[index].is_float:
                require_integer(kind, name, types, index)
        require_same_dtype(kind, BINARY_NAMES, types)
        return (TensorType("bool", broadcast_shapes(kind, BINARY_NAMES, types)),)

    return infer


def _declare_comparison(kind: str, doc: str, formula: str, example: str) -> Declaration:
    return Declaration(
        kind,
        doc,
        _NUMBERS,
        _infer_comparison(kind),
        binary_rule,
        result_flops,
        lambda types, attrs, wrt: 0,
        differentiable=False,
        formula=formula,
        cases=(*_CASES, Case(("int32[batch, 20]", "int32[]"))),
        example=example,
    )


GREATER = _declare_comparison(
    "greater",
    "a > b, element by element, with broadcasting: a condition for `where`. It has no"
    " gradient.",
    "out = a > b",
    "{name: there, op: greater, in: [ids, zero]}",
)
LESS = _declare_comparison(
    "less",
    "a < b, element by element, with broadcasting: a condition for `where`. It has no"
    " gradient.",
    "out = a < b",
    "{name: short, op: less, in: [length, limit]}",
)
EQUAL = _declare_comparison(
    "equal",
    "a = b, element by element, with broadcasting: a condition for `where`. NaN is not"
    " equal to anything. It has no gradient.",
    "out = a = b",
    "{name: padded, op: equal, in: [ids, zero]}",
)

_CHOICE = (
    Operand("condition", "bool, or an integer that is true unless it is 0"),
    Operand("a", "float, the result where the condition is true"),
    Operand("b", "the same dtype, the result elsewhere; all three are broadcast"),
)
_CHOICE_NAMES = ("condition", *BINARY_NAMES)


def _infer_where(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_arity("where", _CHOICE, types)
    if types[0].dtype not in INTEGERS | {"bool"}:
        raise OpError(
            f"where needs a bool or integer operand as 'condition', not {types[0]}",
            operand=0,
            hint="greater, less and equal make one" if types[0].is_float else None,
        )
    for index, name in enumerate(BINARY_NAMES, start=1):
        require_float("where", name, types, index)
    if types[1].dtype != types[2].dtype:
        raise OpError(
            f"where needs operands of one dtype, 'a' is {types[1]}, 'b' is {types[2]}",
            operand=2,
        )
    return (
        TensorType(types[1].dtype, broadcast_shapes("where", _CHOICE_NAMES, types)),
    )


WHERE = Declaration(
    "where",
    "Selects a where a condition is true and b elsewhere, with broadcasting. Elements"
    " that are not selected get a gradient of 0. If an op before has an infinite"
    " derivative there, its gradient is 0 · inf = NaN.",
    _CHOICE,
    _infer_where,
    binary_rule,
    result_flops,
    grad_flops(0, 1, 1),
    linear=lambda types, attrs: ((1, 2),),
    saves=lambda types, attrs: (0,),
    formula="out = a where condition, else b",
    cases=(
        Case(("bool[batch, 8]", "float32[batch, 8]", "float32[batch, 8]")),
        Case(("int32[batch, 1]", "float32[batch, 8]", "float32[]")),
    ),
    example="{name: masked, op: where, in: [mask, scores, low]}",
)


def _declare_extremum(kind: str, doc: str, formula: str, example: str) -> Declaration:
    return Declaration(
        kind,
        doc,
        BINARY,
        infer_binary(kind),
        binary_rule,
        result_flops,
        grad_flops(2, 2),
        residuals=lambda types, attrs: (
            TensorType("int8", broadcast_shapes(kind, BINARY_NAMES, types)),
        ),
        formula=formula,
        cases=_CASES,
        example=example,
    )


MAXIMUM = _declare_extremum(
    "maximum",
    "The elementwise maximum of two values, with broadcasting; NaN if one is NaN. If"
    " they are equal, each gets half of the gradient, as in JAX and PyTorch.",
    "out = max(a, b); da = dy where a > b, dy / 2 where a = b, else 0",
    "{name: most, op: maximum, in: [left, right]}",
)
MINIMUM = _declare_extremum(
    "minimum",
    "The elementwise minimum of two values, with broadcasting; NaN if one is NaN. If"
    " they are equal, each gets half of the gradient, as in JAX and PyTorch.",
    "out = min(a, b); da = dy where a < b, dy / 2 where a = b, else 0",
    "{name: least, op: minimum, in: [left, right]}",
)


def _infer_clip(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    result = infer_unary("clip")(types, attrs)
    low, high = attrs["min"], attrs["max"]
    if low is None and high is None:
        raise OpError("clip needs min, max or both")
    if low is not None and high is not None and not low <= high:
        raise OpError(f"clip has min {low} above max {high}", attr="min")
    return result


def _count_bounds(attrs: Attrs) -> int:
    return sum(attrs[name] is not None for name in ("min", "max"))


CLIP = Declaration(
    "clip",
    "Limits x to the interval from `min` to `max`. NaN stays NaN. The gradient passes"
    " between the bounds and on them, as in PyTorch and TensorFlow; JAX halves it on a"
    " bound. At least one bound is required.",
    UNARY,
    _infer_clip,
    rowwise,
    lambda types, attrs: _count_bounds(attrs) * types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    attrs=(
        Attr("min", float | None, "the lower bound; null: no bound", default=None),
        Attr("max", float | None, "the upper bound; null: no bound", default=None),
    ),
    residuals=lambda types, attrs: (TensorType("bool", types[0].shape),),
    formula="out = min(max(x, min), max); dx = dy where min ≤ x ≤ max, else 0",
    cases=(
        Case(("float32[batch, 8]",), {"min": -1.0, "max": 1.0}),
        Case(("float32[batch, 8]",), {"max": 6.0}),
    ),
    example="{name: bounded, op: clip, in: x, min: -1.0, max: 1.0}",
)

DECLARATIONS = (GREATER, LESS, EQUAL, WHERE, MAXIMUM, MINIMUM, CLIP)
