"""transpose, squeeze and expand_dims."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.arrays.reduction import normalize_axes
from placer.ops.declaration import Attr, Attrs, BatchRule, Declaration, case, required
from placer.ops.operand import Operand, Types
from placer.place.types import BATCH, Dim, TensorType

_OPERANDS = (Operand("x", "any dtype and shape"),)


def _permutation(x: TensorType, attrs: Attrs) -> tuple[int, ...]:
    perm = attrs["perm"]
    if perm is None:
        return tuple(reversed(range(x.rank)))
    axes = [p + x.rank if p < 0 else p for p in perm]
    if sorted(axes) != list(range(x.rank)):
        message = f"needs each axis of 'x' {x} once, but perm is {list(perm)}"
        raise OpError(message, attr="perm")
    return tuple(axes)


def _infer_transpose(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    return (TensorType(x.dtype, tuple(x.shape[i] for i in _permutation(x, attrs))),)


TRANSPOSE = Declaration(
    "transpose",
    "Permutes the dimensions of x; by default, reverses them. If the batch does"
    " not stay the first dimension, the batch rule is `whole`.",
    _OPERANDS,
    _infer_transpose,
    lambda types, attrs: "whole" if _permutation(types[0], attrs)[0] else "rows",
    attrs=(
        Attr(
            "perm",
            list[int] | None,
            "the axes of x in the order of the result; null: reversed",
        ),
    ),
    linear=lambda types, attrs: ((0,),),
    formula="out.shape[i] = x.shape[perm[i]]",
    source="numpy.transpose",
    cases=(
        case("float32[batch, 20, 4, 16]", perm=[0, 2, 1, 3]),
        case("float32[batch, 8]"),
    ),
)


def _infer_squeeze(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    removed = normalize_axes(attrs, x.rank)
    for axis in removed:
        if x.shape[axis] != 1:
            was = f"axis {axis} of 'x' {x} is {x.shape[axis]}"
            raise OpError(f"removes dimensions of 1, {was}", attr="axis")
    shape = tuple(dim for axis, dim in enumerate(x.shape) if axis not in removed)
    return (TensorType(x.dtype, shape),)


SQUEEZE = Declaration(
    "squeeze",
    "Removes dimensions of size 1. The batch cannot be removed, even if it has"
    " one row.",
    _OPERANDS,
    _infer_squeeze,
    attrs=(required("axis", int | list[int], "the axes to remove"),),
    linear=lambda types, attrs: ((0,),),
    formula="out[i] = x[i, 0]",
    source="numpy.squeeze",
    cases=(
        case("float32[batch, 1]", axis=-1),
        case("float32[batch, 1, 8, 1]", axis=[1, 3]),
    ),
)


def _infer_expand(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), axis = types, attrs["axis"]
    rank = x.rank + (1 if isinstance(axis, int) else len(axis))
    shape: list[Dim] = list(x.shape)
    for new in normalize_axes(attrs, rank, "result"):
        shape.insert(new, 1)
    return (TensorType(x.dtype, tuple(shape)),)


def _rows_expand(types: Types, attrs: Attrs) -> BatchRule:
    (out,) = _infer_expand(types, attrs)
    return "rows" if out.shape[0] == BATCH else "whole"


EXPAND_DIMS = Declaration(
    "expand_dims",
    "Inserts dimensions of size 1. If one of them is before the batch, the batch"
    " rule is `whole`.",
    _OPERANDS,
    _infer_expand,
    _rows_expand,
    attrs=(
        required(
            "axis", int | list[int], "the positions of the new axes in the result"
        ),
    ),
    linear=lambda types, attrs: ((0,),),
    formula="out[i, 0] = x[i]",
    source="numpy.expand_dims",
    cases=(case("float32[batch]", axis=-1), case("float32[batch, 8]", axis=[1, 2])),
)
