"""reshape, flatten, concat and tile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from placer.errors import OpError
from placer.ops.common.checks import count_elements, normalize_axis, without
from placer.ops.declaration import Attr, Attrs, BatchRule, Declaration, case, required
from placer.ops.operand import Operand, Types, check_operand, operand_error
from placer.place.types import BATCH, Dim, TensorType

_error = partial(OpError, attr="shape")


def _count_dims(shape: Sequence[Dim]) -> tuple[int, int]:
    """Return the product of a shape's ints, without -1, and the number of `batch`."""
    sizes = [d for d in shape if isinstance(d, int) and d != -1]
    return count_elements(sizes), sum(d == BATCH for d in shape)


def _infer_reshape(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    shape: list[Dim] = list(attrs["shape"])
    _check_dims(shape)
    text = f"[{', '.join(map(str, shape))}]"
    size, batches = _count_dims(x.shape)
    if -1 in shape:
        rest_size, rest_batches = _count_dims(shape)
        if rest_batches and not (x.has_rows and shape[0] == BATCH):
            raise _error(
                f"cannot tell -1 from batch in {text} for {x}",
                hint="replace -1 by the number",
            )
        rest: Dim = size // rest_size
        if batches == rest_batches + 1:
            rest = BATCH
            if size != rest_size:
                raise _error(
                    f"cannot make {text} of {x}: -1 would be the batch times"
                    f" {size}/{rest_size}",
                    hint="keep batch as a separate dimension",
                )
        shape = [rest if d == -1 else d for d in shape]
    if 0 in shape or _count_dims(shape) != (size, batches):
        raise _error(
            f"cannot make {text} of {x}: the number of elements differs",
            hint="-1 is the dimension that follows from the others, as in [batch, -1]",
        )
    return (TensorType(x.dtype, tuple(shape)),)


def _check_dims(shape: Sequence[Dim]) -> None:
    for dim in shape:
        if dim not in (BATCH, -1) and not (isinstance(dim, int) and dim > 0):
            raise _error(
                f"has the dimension {dim}",
                hint="write an int of at least 1, batch or -1",
            )
    for special in (BATCH, -1):
        if list(shape).count(special) > 1:
            raise _error(f"has {special} more than once")


def _rows_reshape(types: Types, attrs: Attrs) -> BatchRule:
    (x,), (out,) = types, _infer_reshape(types, attrs)
    keeps_rows = x.has_rows and out.has_rows
    if keeps_rows and _count_dims(x.shape[1:]) == _count_dims(out.shape[1:]):
        return "rows"
    return "whole"


RESHAPE = Declaration(
    "reshape",
    "Returns the elements of x in another shape, in row-major order.",
    (Operand("x", "any dtype and shape"),),
    _infer_reshape,
    _rows_reshape,
    attrs=(
        required(
            "shape",
            list[int | Literal["batch"]],
            "the dimensions: ints, at most one `batch`, and at most one -1, which"
            " is inferred",
        ),
    ),
    linear=lambda types, attrs: ((0,),),
    formula="out[i] = x[i] in row-major order",
    cases=(
        case("float32[batch, 64]", shape=["batch", 8, -1]),
        case("float32[batch]", shape=[-1, 1]),
        case("float32[batch, 6]", shape=[6, "batch"]),
    ),
)


def _infer_flatten(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    check_operand(types, 0, "x", x.rank > 0, "a dimension")
    axis = attrs["axis"]
    if axis != x.rank:  # else no dimension is joined
        axis = normalize_axis(axis, x.rank)
    size, batches = _count_dims(x.shape[axis:])
    if batches > 1 or (batches and size != 1):
        raise OpError(
            f"cannot join the batch with other dimensions: 'x' is {x} and axis is"
            f" {attrs['axis']}",
            attr="axis",
            hint="keep batch as a separate dimension; axis: 1 joins the dimensions of"
            " each row",
        )
    return (TensorType(x.dtype, (*x.shape[:axis], BATCH if batches else size)),)


FLATTEN = Declaration(
    "flatten",
    "Joins all dimensions from an axis on into one, in row-major order. By"
    " default, each row becomes a vector. If no dimension follows, a dimension of"
    " 1 is added.",
    (Operand("x", "any dtype, at least one dimension"),),
    _infer_flatten,
    attrs=(Attr("axis", int, "the first dimension to join", default=1),),
    linear=lambda types, attrs: ((0,),),
    formula="out[i] = x[i] in row-major order",
    source="Keras' Flatten, PyTorch's Flatten with start_dim",
    cases=(
        case("float32[batch, 8, 8, 3]"),
        case("float32[batch, 8, 8, 3]", axis=2),
        case("float32[batch]"),
    ),
)


def _infer_concat(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    first = types[0]
    axis = normalize_axis(attrs["axis"], first.rank)
    total = 0
    for index, type_ in enumerate(types):
        same = without(type_.shape, axis) == without(first.shape, axis)
        if type_.rank != first.rank or not same:
            needed = (
                f"operands whose shapes differ only along axis {axis}, 'xs[0]' is"
                f" {first}"
            )
            raise operand_error(types, index, f"xs[{index}]", needed)
        size = type_.shape[axis]
        if size == BATCH:
            raise OpError(
                f"cannot join along the batch, axis {axis} of 'xs[{index}]' {type_}",
                attr="axis",
            )
        total += int(size)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return (TensorType(first.dtype, shape),)


CONCAT = Declaration(
    "concat",
    "Concatenates values along an axis, which cannot be the batch.",
    (
        Operand(
            "xs",
            "one dtype, and one shape except along `axis`",
            variadic=True,
            same="dtype",
        ),
    ),
    _infer_concat,
    attrs=(Attr("axis", int, "the axis to concatenate along", default=-1),),
    linear=lambda types, attrs: (tuple(range(len(types))),),
    formula="out = xs[0], xs[1], … along axis",
    cases=(case("float32[batch, 8], float32[batch, 3]"),),
)


def _infer_tile(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), repeats = types, attrs["repeats"]
    if len(repeats) != x.rank:
        raise OpError(
            f"needs a repeat count for each dimension of 'x' {x}, not {len(repeats)}",
            attr="repeats",
        )
    shape: list[Dim] = []
    for axis, (dim, times) in enumerate(zip(x.shape, repeats, strict=True)):
        if times < 1:
            raise OpError(f"cannot repeat {times} times", attr="repeats")
        if dim == BATCH and times != 1:
            raise OpError(
                f"cannot repeat the batch, axis {axis} of 'x' {x}", attr="repeats"
            )
        shape.append(dim if dim == BATCH else int(dim) * times)
    return (TensorType(x.dtype, tuple(shape)),)


def _tile_grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    (out,) = _infer_tile(types, attrs)
    return out.numel() * len(wrt) if out != types[0] else 0


TILE = Declaration(
    "tile",
    "Repeats x along each of its dimensions.",
    (Operand("x", "any dtype and shape"),),
    _infer_tile,
    grad_flops=_tile_grad_flops,
    attrs=(
        required(
            "repeats",
            list[int],
            "the number of copies along each dimension, 1 along the batch",
        ),
    ),
    linear=lambda types, attrs: ((0,),),
    formula="out[i, j] = x[i mod n, j mod m], where x is [n, m]",
    source="numpy.tile",
    cases=(case("float32[batch, 1, 8]", repeats=[1, 20, 1]),),
)
