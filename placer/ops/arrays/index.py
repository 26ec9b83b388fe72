"""gather, take_along_axis, one_hot: elements by their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placer.errors import OpError
from placer.ops.common.checks import arity, each_row, need_integer, normal_axis
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

_OUTSIDE = (
    " An index outside the axis, a negative one too, gives NaN and no gradient; of an"
    " integer `x` the least number (the greatest if unsigned), of a bool true."
)


def _need_indices(kind: str, operands: Sequence[Operand], types: Types) -> None:
    arity(kind, operands, types)
    if types[1].dtype not in ("int32", "int64"):
        raise OpError(
            f"{kind} needs int32 or int64 indices, 'indices' is {types[1]}", operand=1
        )


def _grad_flops(
    infer: Callable[[Types, Attrs], tuple[TensorType, ...]],
) -> Callable[[Types, Attrs, Sequence[int]], int]:
    """One addition for each element that was taken."""

    def grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
        return infer(types, attrs)[0].numel() * (0 in wrt)

    return grad_flops


def _indexes(kind: str) -> Callable[[Types, Attrs], dict[int, int]]:
    """The size of the axis, where an index outside gives NaN. That of an integer gives
    a number that can be told from others."""

    def indexes(types: Types, attrs: Attrs) -> dict[int, int]:
        x = types[0]
        size = x.shape[normal_axis(kind, attrs["axis"], x.rank)]
        return {1: size} if x.is_float and isinstance(size, int) else {}

    return indexes


_GATHER = (
    Operand("x", "any dtype, at least one dimension"),
    Operand("indices", "int32 or int64, any shape, each in [0, size of the axis)"),
)


def _infer_gather(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _need_indices("gather", _GATHER, types)
    x, indices = types
    axis = normal_axis("gather", attrs["axis"], x.rank)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return (TensorType(x.dtype, shape),)


def _rows_gather(types: Types, attrs: Attrs) -> Rule:
    x, indices = types
    first = normal_axis("gather", attrs["axis"], x.rank) == 0
    if first:  # the rows are those of the indices, if x has none to choose from
        return "whole" if x.has_rows else "rows"
    return "whole" if indices.has_rows else "rows"


GATHER = Declaration(
    "gather",
    "What stands at `indices` along an axis: the same for all that lies across it."
    + _OUTSIDE,
    _GATHER,
    _infer_gather,
    _rows_gather,
    lambda types, attrs: 0,
    _grad_flops(_infer_gather),
    attrs=(Attr("axis", int, "the axis that `indices` count along", default=0),),
    linear=lambda types, attrs: ((0,),),
    saves=lambda types, attrs: (1,),
    indexes=_indexes("gather"),
    formula="out[a, i, b] = x[a, indices[i], b]",
    source="numpy.take, tf.gather",
    cases=(
        Case(("float32[1000, 16]", "int32[batch, 20]")),
        Case(("float32[batch, 20, 8]", "int32[5]"), {"axis": 1}),
        Case(("float32[batch, 8]", "int32[batch]")),
    ),
    example="{name: chosen, op: gather, in: [table, ids]}",
)

_ALONG = (
    Operand("x", "any dtype, at least one dimension"),
    Operand("indices", "int32 or int64, the shape of `x` but for the axis"),
)


def _without(shape: Sequence[object], axis: int) -> list[object]:
    return [*shape[:axis], *shape[axis + 1 :]]


def _infer_along(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _need_indices("take_along_axis", _ALONG, types)
    x, indices = types
    axis = normal_axis("take_along_axis", attrs["axis"], x.rank)
    if indices.rank != x.rank or (
        _without(indices.shape, axis) != _without(x.shape, axis)
    ):
        short = _without(x.shape, axis) == list(indices.shape)
        raise OpError(
            f"take_along_axis needs operands that differ at axis {axis} only,"
            f" 'x' is {x}, 'indices' is {indices}",
            operand=1,
            hint=f"expand_dims the indices at axis {axis}" if short else None,
        )
    return (TensorType(x.dtype, indices.shape),)


def _rows_along(types: Types, attrs: Attrs) -> Rule:
    x = types[0]
    first = normal_axis("take_along_axis", attrs["axis"], x.rank) == 0
    return "whole" if first and x.has_rows else "rows"


TAKE_ALONG_AXIS = Declaration(
    "take_along_axis",
    "What stands at `indices` along an axis, where everything that lies across it has"
    " indices of its own." + _OUTSIDE,
    _ALONG,
    _infer_along,
    _rows_along,
    lambda types, attrs: 0,
    _grad_flops(_infer_along),
    attrs=(Attr("axis", int, "the axis that `indices` count along", default=-1),),
    linear=lambda types, attrs: ((0,),),
    saves=lambda types, attrs: (1,),
    indexes=_indexes("take_along_axis"),
    formula="out[a, i] = x[a, indices[a, i]]",
    source="numpy.take_along_axis, torch.gather",
    cases=(
        Case(("float32[batch, 10]", "int32[batch, 1]")),
        Case(("float32[batch, 20, 8]", "int32[batch, 3, 8]"), {"axis": 1}),
        Case(("float32[batch, 8]", "int32[5, 8]"), {"axis": 0}),
    ),
    example="{name: own, op: take_along_axis, in: [logits, label]}",
)

_ONE_HOT = (Operand("ids", "integer, any shape"),)


def _infer_one_hot(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("one_hot", _ONE_HOT, types)
    need_integer("one_hot", "ids", types, 0)
    if attrs["classes"] < 1:
        raise OpError(
            f"one_hot needs at least 1 class, not {attrs['classes']}", attr="classes"
        )
    return (TensorType(attrs["dtype"], (*types[0].shape, attrs["classes"])),)


ONE_HOT = Declaration(
    "one_hot",
    "1 at the number of a class, 0 at the others, along a new last axis. A number"
    " outside [0, classes) gives zeros only.",
    _ONE_HOT,
    _infer_one_hot,
    each_row,
    lambda types, attrs: types[0].numel() * int(attrs["classes"]),
    lambda types, attrs, wrt: 0,
    attrs=(
        Attr("classes", int, "the size of the new axis", required=True),
        Attr(
            "dtype",
            str,
            "of the result",
            default="float32",
            choices=("float16", "bfloat16", "float32", "float64"),
        ),
    ),
    differentiable=False,
    formula="out[i, c] = 1 where ids[i] = c, else 0",
    source="jax.nn.one_hot",
    cases=(Case(("int32[batch]",), {"classes": 10}),),
    example="{name: target, op: one_hot, in: label, classes: 10}",
)

DECLARATIONS = (GATHER, TAKE_ALONG_AXIS, ONE_HOT)
