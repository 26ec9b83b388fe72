"""cumsum: what has come so far along an axis."""

from __future__ import annotations

from placer.ops.common.checks import arity, need_float, normal_axis
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Rule,
    Types,
)
from placer.types import TensorType

_ONE = (Operand("x", "float, at least one dimension"),)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("cumsum", _ONE, types)
    need_float("cumsum", "x", types, 0)
    normal_axis("cumsum", attrs["axis"], types[0].rank)
    return (types[0],)


def _rows(types: Types, attrs: Attrs) -> Rule:
    axis = normal_axis("cumsum", attrs["axis"], types[0].rank)
    return "whole" if axis == 0 else "rows"


CUMSUM = Declaration(
    "cumsum",
    "The sum of the elements along an axis up to each of them.",
    _ONE,
    _infer,
    _rows,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    attrs=(
        Attr("axis", int, "the axis that is gone along", default=-1),
        Attr("reverse", bool, "from the end to the beginning", default=False),
        Attr("exclusive", bool, "each sum without its own element", default=False),
    ),
    linear=lambda types, attrs: ((0,),),
    formula="out[i] = x[0] + … + x[i]",
    source="numpy.cumsum; reverse and exclusive as TensorFlow has them",
    cases=(
        Case(("float32[batch, 20]",)),
        Case(("float32[batch, 20]",), {"axis": 0}),
    ),
    example="{name: survival, op: cumsum, in: hazard}",
)

DECLARATIONS = (CUMSUM,)
