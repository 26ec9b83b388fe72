"""split and slice: parts of a value along its dimensions, which are not the batch."""

from __future__ import annotations

from collections.abc import Sequence

from placer.errors import OpError
from placer.ops.arrays.reduction import axes
from placer.ops.common.checks import arity, each_row, normal_axis
from placer.ops.declaration import Attr, Attrs, Case, Declaration, Operand, Types
from placer.types import BATCH, Dim, TensorType

_SPLIT = (Operand("x", "any dtype, at least one dimension"),)


def _sizes(x: TensorType, axis: int, sections: int | Sequence[int]) -> tuple[int, ...]:
    """The size of each part along the axis; OpError when they do not fit."""
    total = x.shape[axis]
    if total == BATCH:
        raise OpError(
            f"split cannot cut the batch, axis {axis} of 'x' {x}", attr="axis"
        )
    if isinstance(sections, int):
        parts = sections
        fits = parts > 0 and int(total) % parts == 0
        sizes = (int(total) // parts,) * parts if fits else ()
        wanted = f"{parts} equal parts"
    else:
        sizes, parts = tuple(sections), len(sections)
        fits = sum(sizes) == total and all(size > 0 for size in sizes)
        wanted = f"parts of {list(sizes)}"
    if parts < 2:
        raise OpError("split needs at least 2 sections", attr="sections")
    if not fits:
        raise OpError(
            f"split cannot make {wanted} of axis {axis} of 'x' {x}", attr="sections"
        )
    return sizes


def _infer_split(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("split", _SPLIT, types)
    (x,) = types
    axis = normal_axis("split", attrs["axis"], x.rank)
    return tuple(
        TensorType(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :]))
        for size in _sizes(x, axis, attrs["sections"])
    )


SPLIT = Declaration(
    "split",
    "Several values, one after the other along an axis, which is not the batch: the"
    " inverse of `concat`.",
    _SPLIT,
    _infer_split,
    each_row,
    lambda types, attrs: 0,
    lambda types, attrs, wrt: 0,
    attrs=(
        Attr(
            "sections",
            int | list[int],
            "how many equal parts, or the size of each",
            required=True,
        ),
        Attr("axis", int, "where it is cut", default=-1),
    ),
    variadic=True,
    linear=lambda types, attrs: ((0,),),
    formula="out0, out1, … = x along axis",
    cases=(
        Case(("float32[batch, 96]",), {"sections": 3}),
        Case(("float32[batch, 10]",), {"sections": [8, 2]}),
    ),
    example="{name: qkv, op: split, in: projected, sections: 3,"
    " out: [query, key, value]}",
)

_SLICE = (Operand("x", "any dtype, at least one dimension"),)
_BOUND = int | list[int] | None


def _each(name: str, attrs: Attrs, count: int) -> tuple[int | None, ...]:
    """An attribute's value for each axis that is named."""
    given = attrs[name]
    if given is None or isinstance(given, int):
        return (given,) * count
    if len(given) != count:
        raise OpError(
            f"slice needs one {name} for each of {count} axes, not {list(given)}",
            attr=name,
            hint="write one number, or one for each axis",
        )
    return tuple(given)


def _taken(
    x: TensorType, axis: int, start: int | None, stop: int | None, step: int | None
) -> range:
    """The indices of one dimension that are taken; OpError when they are not there."""
    size = x.shape[axis]
    if size == BATCH:
        raise OpError(
            f"slice cannot cut the batch, axis {axis} of 'x' {x}", attr="axis"
        )
    if not step:
        raise OpError(f"slice cannot have the step {step}", attr="step")
    for name, bound in (("start", start), ("stop", stop)):
        if bound is not None and not -int(size) <= bound <= int(size):
            raise OpError(
                f"slice has {name} {bound}, axis {axis} of 'x' is {size}", attr=name
            )
    taken = range(int(size))[start:stop:step]
    if not taken:
        raise OpError(f"slice takes nothing of axis {axis} of 'x' {x}", attr="start")
    return taken


def _infer_slice(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("slice", _SLICE, types)
    (x,), named = types, attrs["axis"]
    axes("slice", attrs, x.rank)  # each once
    named = (named,) if isinstance(named, int) else named
    bounds = (_each(name, attrs, len(named)) for name in ("start", "stop", "step"))
    shape: list[Dim] = list(x.shape)
    for axis, start, stop, step in zip(named, *bounds, strict=True):
        at = axis % x.rank
        shape[at] = len(_taken(x, at, start, stop, step))
    return (TensorType(x.dtype, tuple(shape)),)


SLICE = Declaration(
    "slice",
    "A part of each dimension that is named: what `start:stop:step` is in Python, but"
    " that a bound outside the dimension is an error. A negative bound counts from the"
    " end, a negative step goes backwards.",
    _SLICE,
    _infer_slice,
    each_row,
    lambda types, attrs: 0,
    lambda types, attrs, wrt: 0,
    attrs=(
        Attr(
            "axis",
            int | list[int],
            "the dimensions that are cut, not the batch",
            required=True,
        ),
        Attr(
            "start",
            _BOUND,
            "the first index, for all axes or one for each; null: the end it starts at",
            default=None,
        ),
        Attr(
            "stop",
            _BOUND,
            "the index before which it stops; null: none",
            default=None,
        ),
        Attr("step", int | list[int], "from one index to the next, not 0", default=1),
    ),
    linear=lambda types, attrs: ((0,),),
    formula="out = x[:, start:stop:step]",
    cases=(
        Case(("float32[batch, 20, 8]",), {"axis": 1, "start": -1}),
        Case(
            ("float32[batch, 32, 32, 3]",),
            {"axis": [1, 2], "start": 2, "stop": [30, -2]},
        ),
        Case(("float32[batch, 20, 8]",), {"axis": 1, "step": -1}),
    ),
    example="{name: crop, op: slice, in: image, axis: [1, 2], start: 2, stop: 30}",
)

DECLARATIONS = (SPLIT, SLICE)
