"""greater, less, equal, where, maximum, minimum, clip: which of two it is."""

from __future__ import annotations

from collections.abc import Callable

from placer.errors import OpError
from placer.ops.common.checks import (
    INTEGERS,
    arity,
    broadcast,
    each_row,
    need_float,
    need_integer,
    need_same_dtype,
)
from placer.ops.declaration import Attr, Attrs, Case, Declaration, Operand, Types
from placer.ops.elementwise.broadcasting import (
    NAMES,
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
    Case(("float32[batch, 8]", "float32[]")),
)

_NUMBERS = (
    Operand("a", "float or integer, any shape"),
    Operand("b", "the same dtype, broadcast to a"),
)


def _infer_comparison(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        arity(kind, _NUMBERS, types)
        for index, name in enumerate(NAMES):
            if not types[index].is_float:
                need_integer(kind, name, types, index)
        need_same_dtype(kind, NAMES, types)
        return (TensorType("bool", broadcast(kind, NAMES, types)),)

    return infer


def _comparison(kind: str, doc: str, formula: str, example: str) -> Declaration:
    return Declaration(
        kind,
        doc,
        _NUMBERS,
        _infer_comparison(kind),
        rows,
        once,
        lambda types, attrs, wrt: 0,
        differentiable=False,
        formula=formula,
        cases=(*_CASES, Case(("int32[batch, 20]", "int32[]"))),
        example=example,
    )


GREATER = _comparison(
    "greater",
    "Whether the first value is the greater one: something for `where` to take. No"
    " gradient flows through it.",
    "out = a > b",
    "{name: there, op: greater, in: [ids, zero]}",
)
LESS = _comparison(
    "less",
    "Whether the first value is the smaller one. No gradient flows through it.",
    "out = a < b",
    "{name: short, op: less, in: [length, limit]}",
)
EQUAL = _comparison(
    "equal",
    "Whether two values are equal; NaN equals nothing. No gradient flows through it.",
    "out = a = b",
    "{name: padded, op: equal, in: [ids, zero]}",
)

_CHOICE = (
    Operand("condition", "bool, or an integer that is true unless it is 0"),
    Operand("a", "float, taken where the condition is true"),
    Operand("b", "the same dtype, taken elsewhere; all three broadcast"),
)
_CHOICE_NAMES = ("condition", *NAMES)


def _infer_where(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("where", _CHOICE, types)
    if types[0].dtype not in INTEGERS | {"bool"}:
        raise OpError(
            f"where needs a bool or integer operand as 'condition', not {types[0]}",
            operand=0,
            hint="greater, less and equal make one" if types[0].is_float else None,
        )
    for index, name in enumerate(NAMES, start=1):
        need_float("where", name, types, index)
    if types[1].dtype != types[2].dtype:
        raise OpError(
            f"where needs operands of one dtype, 'a' is {types[1]}, 'b' is {types[2]}",
            operand=2,
        )
    return (TensorType(types[1].dtype, broadcast("where", _CHOICE_NAMES, types)),)


WHERE = Declaration(
    "where",
    "One value where a condition is true, another elsewhere. What is not taken gets a"
    " gradient of 0; an op before it makes NaN of that where its own slope is inf.",
    _CHOICE,
    _infer_where,
    rows,
    once,
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


def _extreme(kind: str, doc: str, formula: str, example: str) -> Declaration:
    return Declaration(
        kind,
        doc,
        PAIR,
        infer_pair(kind),
        rows,
        once,
        grad_flops(2, 2),
        residuals=lambda types, attrs: (
            TensorType("int8", broadcast(kind, NAMES, types)),
        ),
        formula=formula,
        cases=_CASES,
        example=example,
    )


MAXIMUM = _extreme(
    "maximum",
    "The greater of two values. Where they are equal each gets half of the gradient, as"
    " in JAX and PyTorch.",
    "out = max(a, b); da = dy where a > b, dy / 2 where a = b, else 0",
    "{name: most, op: maximum, in: [left, right]}",
)
MINIMUM = _extreme(
    "minimum",
    "The smaller of two values. Where they are equal each gets half of the gradient, as"
    " in JAX and PyTorch.",
    "out = min(a, b); da = dy where a < b, dy / 2 where a = b, else 0",
    "{name: least, op: minimum, in: [left, right]}",
)


def _infer_clip(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    result = infer_one("clip")(types, attrs)
    low, high = attrs["min"], attrs["max"]
    if low is None and high is None:
        raise OpError("clip needs min, max or both")
    if low is not None and high is not None and not low <= high:
        raise OpError(f"clip has min {low} above max {high}", attr="min")
    return result


def _bounds(attrs: Attrs) -> int:
    return sum(attrs[name] is not None for name in ("min", "max"))


CLIP = Declaration(
    "clip",
    "The value, kept within bounds. The gradient passes on the bounds and between them,"
    " as PyTorch and TensorFlow have it; JAX halves it on a bound.",
    ONE,
    _infer_clip,
    each_row,
    lambda types, attrs: _bounds(attrs) * types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    attrs=(
        Attr("min", float | None, "the lower bound, null for none", default=None),
        Attr("max", float | None, "the upper bound, null for none", default=None),
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
