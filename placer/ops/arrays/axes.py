"""transpose, squeeze, expand_dims: which dimensions there are, and in which order."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.arrays.reduction import axes
from placer.ops.common.checks import arity, each_row
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Rule,
    Types,
)
from placer.types import BATCH, Dim, TensorType

_ONE = (Operand("x", "any dtype and shape"),)


def _order(x: TensorType, attrs: Attrs) -> tuple[int, ...]:
    """The axis of `x` that each dimension of the result is."""
    perm = attrs["perm"]
    if perm is None:
        return tuple(reversed(range(x.rank)))
    found = [p + x.rank if p < 0 else p for p in perm]
    if sorted(found) != list(range(x.rank)):
        raise OpError(
            f"transpose needs each axis of 'x' {x} once, perm is {list(perm)}",
            attr="perm",
        )
    return tuple(found)


def _infer_transpose(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("transpose", _ONE, types)
    (x,) = types
    return (TensorType(x.dtype, tuple(x.shape[i] for i in _order(x, attrs))),)


def _rows_transpose(types: Types, attrs: Attrs) -> Rule:
    return "rows" if _order(types[0], attrs)[0] == 0 else "whole"


TRANSPOSE = Declaration(
    "transpose",
    "The dimensions in another order; all of them reversed, if none is said. One that"
    " moves the batch from the front needs the whole of it.",
    _ONE,
    _infer_transpose,
    _rows_transpose,
    lambda types, attrs: 0,
    lambda types, attrs, wrt: 0,
    attrs=(
        Attr(
            "perm",
            list[int] | None,
            "the axes of `x` in the result's order; null: reversed",
            default=None,
        ),
    ),
    linear=lambda types, attrs: ((0,),),
    formula="out.shape[i] = x.shape[perm[i]]",
    source="numpy.transpose",
    cases=(
        Case(("float32[batch, 20, 4, 16]",), {"perm": [0, 2, 1, 3]}),
        Case(("float32[batch, 8]",)),
    ),
    example="{name: heads, op: transpose, in: tokens, perm: [0, 2, 1, 3]}",
)


def _infer_squeeze(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("squeeze", _ONE, types)
    (x,) = types
    gone = axes("squeeze", attrs, x.rank)
    for axis in gone:
        if x.shape[axis] != 1:
            raise OpError(
                f"squeeze takes dimensions of 1 away, axis {axis} of 'x' {x} is"
                f" {x.shape[axis]}",
                attr="axis",
            )
    shape = tuple(dim for axis, dim in enumerate(x.shape) if axis not in gone)
    return (TensorType(x.dtype, shape),)


SQUEEZE = Declaration(
    "squeeze",
    "Without dimensions of 1, which are named: a batch of one row is not one of them.",
    _ONE,
    _infer_squeeze,
    each_row,
    lambda types, attrs: 0,
    lambda types, attrs, wrt: 0,
    attrs=(Attr("axis", int | list[int], "the axes that go", required=True),),
    linear=lambda types, attrs: ((0,),),
    formula="out[i] = x[i, 0]",
    source="numpy.squeeze",
    cases=(
        Case(("float32[batch, 1]",), {"axis": -1}),
        Case(("float32[batch, 1, 8, 1]",), {"axis": [1, 3]}),
    ),
    example="{name: prediction, op: squeeze, in: out, axis: -1}",
)


def _put(x: TensorType, attrs: Attrs) -> tuple[int, ...]:
    """The axes of the result that are new, in order."""
    given = attrs["axis"]
    rank = x.rank + (1 if isinstance(given, int) else len(given))
    return axes("expand_dims", attrs, rank, "result")


def _infer_expand(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("expand_dims", _ONE, types)
    (x,) = types
    shape: list[Dim] = list(x.shape)
    for axis in _put(x, attrs):
        shape.insert(axis, 1)
    return (TensorType(x.dtype, tuple(shape)),)


def _rows_expand(types: Types, attrs: Attrs) -> Rule:
    (out,) = _infer_expand(types, attrs)
    return "rows" if out.shape[0] == BATCH else "whole"


EXPAND_DIMS = Declaration(
    "expand_dims",
    "With new dimensions of 1. One before the batch needs the whole of it.",
    _ONE,
    _infer_expand,
    _rows_expand,
    lambda types, attrs: 0,
    lambda types, attrs, wrt: 0,
    attrs=(
        Attr(
            "axis",
            int | list[int],
            "where they stand in the result",
            required=True,
        ),
    ),
    linear=lambda types, attrs: ((0,),),
    formula="out[i, 0] = x[i]",
    source="numpy.expand_dims",
    cases=(
        Case(("float32[batch]",), {"axis": -1}),
        Case(("float32[batch, 8]",), {"axis": [1, 2]}),
    ),
    example="{name: column, op: expand_dims, in: label, axis: -1}",
)

DECLARATIONS = (TRANSPOSE, SQUEEZE, EXPAND_DIMS)
