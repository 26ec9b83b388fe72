"""split and slice: parts of a value along dimensions other than the batch."""

from __future__ import annotations

from collections.abc import Sequence

from placer.errors import OpError
from placer.ops.arrays.reduction import normalize_axes
from placer.ops.common.checks import normalize_axis
from placer.ops.declaration import Attr, Attrs, Declaration, case, required
from placer.ops.operand import Operand, Types
from placer.place.types import BATCH, Dim, TensorType


def _sizes(x: TensorType, axis: int, sections: int | Sequence[int]) -> tuple[int, ...]:
    """Return the size of each part along the axis; raise OpError if they do not fit."""
    total = x.shape[axis]
    if total == BATCH:
        raise OpError(f"cannot cut the batch, axis {axis} of 'x' {x}", attr="axis")
    if isinstance(sections, int):
        parts = sections
        fits = parts > 0 and int(total) % parts == 0
        sizes = (int(total) // parts,) * parts if fits else ()
        described = f"{parts} equal parts"
    else:
        sizes, parts = tuple(sections), len(sections)
        fits = sum(sizes) == total and all(size > 0 for size in sizes)
        described = f"parts of {list(sizes)}"
    if parts < 2:
        raise OpError("needs at least 2 sections", attr="sections")
    if not fits:
        raise OpError(
            f"cannot make {described} of axis {axis} of 'x' {x}", attr="sections"
        )
    return sizes


def _infer_split(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    axis = normalize_axis(attrs["axis"], x.rank)
    return tuple(
        TensorType(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :]))
        for size in _sizes(x, axis, attrs["sections"])
    )


SPLIT = Declaration(
    "split",
    "Splits x into several values along an axis: the inverse of `concat`. The"
    " axis cannot be the batch.",
    (Operand("x", "any dtype, at least one dimension"),),
    _infer_split,
    attrs=(
        required(
            "sections",
            int | list[int],
            "the number of equal parts, or a list with the size of each part",
        ),
        Attr("axis", int, "the axis to split", default=-1),
    ),
    variadic=True,
    linear=lambda types, attrs: ((0,),),
    formula="out0, out1, … = x along axis",
    cases=(
        case("float32[batch, 96]", sections=3),
        case("float32[batch, 10]", sections=[8, 2]),
    ),
)

_BOUND = int | list[int] | None


def _per_axis(name: str, attrs: Attrs, count: int) -> tuple[int | None, ...]:
    value = attrs[name]
    if value is None or isinstance(value, int):
        return (value,) * count
    if len(value) != count:
        raise OpError(
            f"needs one {name} for each of {count} axes, not {list(value)}",
            attr=name,
            hint="write one number, or one for each axis",
        )
    return tuple(value)


def _indices(
    x: TensorType, axis: int, start: int | None, stop: int | None, step: int | None
) -> range:
    """Return the indices to keep along a dimension; raise OpError for invalid bounds."""
    size = x.shape[axis]
    if size == BATCH:
        raise OpError(f"cannot cut the batch, axis {axis} of 'x' {x}", attr="axis")
    if not step:
        raise OpError(f"cannot have the step {step}", attr="step")
    for name, bound in (("start", start), ("stop", stop)):
        if bound is not None and not -int(size) <= bound <= int(size):
            raise OpError(
                f"has {name} {bound}, but axis {axis} of 'x' has {size} elements",
                attr=name,
            )
    indices = range(int(size))[start:stop:step]
    if not indices:
        raise OpError(f"takes no element of axis {axis} of 'x' {x}", attr="start")
    return indices


def _infer_slice(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), axes = types, attrs["axis"]
    normalize_axes(attrs, x.rank)  # raises if an axis is repeated
    axes = (axes,) if isinstance(axes, int) else axes
    for name in ("start", "stop", "step"):
        if not axes and attrs[name] not in (None, (), 1):
            message = f"slices no axis, so '{name}' has no effect"
            hint = f"leave {name} out, or write an axis"
            raise OpError(message, attr=name, hint=hint)
    bounds = (_per_axis(name, attrs, len(axes)) for name in ("start", "stop", "step"))
    shape: list[Dim] = list(x.shape)
    for axis, start, stop, step in zip(axes, *bounds, strict=True):
        normalized = axis % x.rank
        shape[normalized] = len(_indices(x, normalized, start, stop, step))
    return (TensorType(x.dtype, tuple(shape)),)


SLICE = Declaration(
    "slice",
    "Slices x along the given dimensions by `start:stop:step`, as in Python."
    " Unlike Python, a bound outside the dimension and an empty result are"
    " errors. A negative bound counts from the end; a negative step goes"
    " backwards.",
    (Operand("x", "any dtype, at least one dimension"),),
    _infer_slice,
    attrs=(
        required("axis", int | list[int], "the dimensions to slice, not the batch"),
        Attr(
            "start",
            _BOUND,
            "the first index, one for all axes or one for each; null: from the"
            " start (from the end for a negative step)",
        ),
        Attr(
            "stop",
            _BOUND,
            "the index to stop before, one for all axes or one for each; null: no"
            " bound",
        ),
        Attr(
            "step",
            int | list[int],
            "the distance from one index to the next, one for all axes or one for"
            " each; not 0",
            default=1,
        ),
    ),
    linear=lambda types, attrs: ((0,),),
    formula="out = x[:, start:stop:step]",
    cases=(
        case("float32[batch, 32, 32, 3]", axis=[1, 2], start=2, stop=[30, -2]),
        case("float32[batch, 20, 8]", axis=1, start=-1),
        case("float32[batch, 20, 8]", axis=1, step=-1),
    ),
)
