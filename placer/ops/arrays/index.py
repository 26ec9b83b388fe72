"""gather, take_along_axis and one_hot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from placer.ops.common.checks import check_attr, normalize_axis, without
from placer.ops.declaration import (
    Attr,
    Attrs,
    BatchRule,
    Declaration,
    IndexBound,
    case,
    float_dtype,
    required,
)
from placer.ops.operand import Operand, Types, check_operand, operand_error
from placer.place.types import TensorType

_OUTSIDE = (
    " An index outside [0, size of the axis) has no gradient. It gives NaN if `x`"
    " is float, true if `x` is bool, the smallest number of a signed integer"
    " dtype, and the largest of an unsigned one."
)


def _check_indices(types: Types) -> None:
    valid = types[1].dtype in ("int32", "int64")
    check_operand(types, 1, "indices", valid, "int32 or int64 indices")


def _declare(
    kind: str,
    doc: str,
    operands: tuple[Operand, ...],
    infer: Callable[[Types, Attrs], tuple[TensorType, ...]],
    rule: Callable[[Types, Attrs], BatchRule],
    axis: int,
    **texts: Any,
) -> Declaration:
    """Declare an op that selects elements of x by indices along an axis."""

    def index_bounds(types: Types, attrs: Attrs) -> dict[int, IndexBound]:
        # For an integer x, the result for an invalid index looks like a valid number
        x = types[0]
        size = x.shape[normalize_axis(attrs["axis"], x.rank)]
        return {1: IndexBound(size)} if x.is_float and isinstance(size, int) else {}

    return Declaration(
        kind,
        doc + _OUTSIDE,
        operands,
        infer,
        rule,
        # one addition for each selected element
        grad_flops=lambda types, attrs, wrt: (
            infer(types, attrs)[0].numel() * (0 in wrt)
        ),
        attrs=(Attr("axis", int, "the axis to index", default=axis),),
        linear=lambda types, attrs: ((0,),),
        saves=lambda types, attrs: (1,),
        index_bounds=index_bounds,
        **texts,
    )


def _infer_gather(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check_indices(types)
    x, indices = types
    axis = normalize_axis(attrs["axis"], x.rank)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    return (TensorType(x.dtype, shape),)


def _rows_gather(types: Types, attrs: Attrs) -> BatchRule:
    x, indices = types
    if normalize_axis(attrs["axis"], x.rank) == 0:
        # the result's rows are the rows of the indices, unless x has rows
        return "whole" if x.has_rows else "rows"
    return "whole" if indices.has_rows else "rows"


GATHER = _declare(
    "gather",
    "Selects slices of x by their indices along an axis. In the shape of the"
    " result, the dimensions of `indices` replace the axis.",
    (
        Operand("x", "any dtype, at least one dimension"),
        Operand("indices", "int32 or int64, any shape, each in [0, size of the axis)"),
    ),
    _infer_gather,
    _rows_gather,
    0,
    formula="out[a, i, b] = x[a, indices[i], b]",
    source="numpy.take, tf.gather",
    cases=(
        case("float32[1000, 16], int32[batch, 20]"),
        case("float32[batch, 20, 8], int32[5]", axis=1),
        case("float32[batch, 8], int32[batch]"),
    ),
)


def _infer_take_along_axis(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check_indices(types)
    x, indices = types
    axis = normalize_axis(attrs["axis"], x.rank)
    others = without(x.shape, axis)
    if indices.rank != x.rank or without(indices.shape, axis) != others:
        short = indices.shape == others
        hint = (
            f"insert axis {axis} into the indices with expand_dims" if short else None
        )
        needed = f"operands whose shapes differ only along axis {axis}, 'x' is {x}"
        raise operand_error(types, 1, "indices", needed, hint)
    return (TensorType(x.dtype, indices.shape),)


def _rows_take_along_axis(types: Types, attrs: Attrs) -> BatchRule:
    x = types[0]
    first = normalize_axis(attrs["axis"], x.rank) == 0
    return "whole" if first and x.has_rows else "rows"


TAKE_ALONG_AXIS = _declare(
    "take_along_axis",
    "Selects elements of x along an axis, with separate indices for each position"
    " of the other axes. The result has the shape of `indices`.",
    (
        Operand("x", "any dtype, at least one dimension"),
        Operand("indices", "int32 or int64, the shape of `x` except for the axis"),
    ),
    _infer_take_along_axis,
    _rows_take_along_axis,
    -1,
    formula="out[a, i] = x[a, indices[a, i]]",
    source="numpy.take_along_axis, torch.gather",
    cases=(
        case("float32[batch, 10], int32[batch, 1]"),
        case("float32[batch, 20, 8], int32[batch, 3, 8]", axis=1),
        case("float32[batch, 8], int32[5, 8]", axis=0),
    ),
)


def _infer_one_hot(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_attr(attrs, "classes", attrs["classes"] >= 1, "at least 1 class")
    return (TensorType(attrs["dtype"], (*types[0].shape, attrs["classes"])),)


ONE_HOT = Declaration(
    "one_hot",
    "One-hot vectors along a new last axis: 1 at the index of the class, 0"
    " elsewhere. An id outside [0, classes) gives zeros.",
    (Operand("ids", "integer, any shape", dtype="integer"),),
    _infer_one_hot,
    flops=lambda types, attrs: types[0].numel() * int(attrs["classes"]),
    attrs=(
        required("classes", int, "the size of the new axis"),
        float_dtype("the dtype of the result"),
    ),
    differentiable=False,
    formula="out[i, c] = 1 where ids[i] = c, else 0",
    source="jax.nn.one_hot",
    cases=(case("int32[batch]", classes=10),),
)
