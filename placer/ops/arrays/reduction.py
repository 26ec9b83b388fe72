"""reduce_sum, reduce_mean, reduce_max and reduce_min."""

from __future__ import annotations

from itertools import chain

from placer.errors import OpError
from placer.ops.common.checks import normalize_axis
from placer.ops.declaration import Attr, Attrs, BatchRule, Declaration, case, flag
from placer.ops.operand import Operand, Types
from placer.place.types import TensorType

_OPERANDS = (Operand("x", "float, any shape", dtype="float"),)
_ATTRS = (
    Attr("axis", int | list[int] | None, "the axes to reduce; null: all"),
    flag("keepdims", "whether to keep the axes with size 1"),
)


def normalize_axes(attrs: Attrs, rank: int, of: str = "operand") -> tuple[int, ...]:
    """Return the axes of the attribute `axis`, counted from the front and sorted.

    null means all axes. `of` names the value with `rank` dimensions. Raises OpError if
    an axis is out of range or repeated.
    """
    written = attrs["axis"]
    if written is None:
        return tuple(range(rank))
    axes = [
        normalize_axis(axis, rank, of)
        for axis in ([written] if isinstance(written, int) else written)
    ]
    if len(set(axes)) != len(axes):
        raise OpError(f"repeats an axis: {written}", attr="axis")
    return tuple(sorted(axes))


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    reduced = normalize_axes(attrs, types[0].rank)
    if attrs["keepdims"] and attrs["axis"] == ():
        raise OpError(
            "reduces no axis, so 'keepdims' has no effect",
            attr="keepdims",
            hint="leave keepdims out, or write an axis",
        )
    kept = (1,) if attrs["keepdims"] else ()
    dims = [kept if i in reduced else (d,) for i, d in enumerate(types[0].shape)]
    return (TensorType(types[0].dtype, tuple(chain(*dims))),)


def _rows(types: Types, attrs: Attrs) -> BatchRule:
    return "reduce" if 0 in normalize_axes(attrs, types[0].rank) else "rows"


def _result_elements(types: Types, attrs: Attrs) -> int:
    return _infer(types, attrs)[0].numel()


_CASES = (
    case("float32[batch, 8]", axis=1),
    case("float32[batch, 8]"),
    case("float32[batch, 8]", axis=0, keepdims=True),
)

REDUCE_SUM = Declaration(
    "reduce_sum",
    "The sum over axes; 0 for no elements. Half floats are summed in float32.",
    _OPERANDS,
    _infer,
    _rows,
    lambda types, attrs: types[0].numel(),
    attrs=_ATTRS,
    linear=lambda types, attrs: ((0,),),
    formula="out = Σ x",
    cases=_CASES,
)
REDUCE_MEAN = Declaration(
    "reduce_mean",
    "The mean over axes. A mean over the batch divides by the rows of the global"
    " batch. Half floats are summed in float32.",
    _OPERANDS,
    _infer,
    _rows,
    lambda types, attrs: types[0].numel() + _result_elements(types, attrs),
    lambda types, attrs, wrt: _result_elements(types, attrs) * len(wrt),
    attrs=_ATTRS,
    linear=lambda types, attrs: ((0,),),
    takes_count=lambda types, attrs: (
        types[0].has_rows and _rows(types, attrs) == "reduce"
    ),
    formula="out = Σ x / n, where n is the number of elements in each sum",
    cases=_CASES,
)


def _infer_extremum(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    for axis in normalize_axes(attrs, types[0].rank):
        if types[0].shape[axis] == 0:
            message = f"finds no element along axis {axis} of 'x' {types[0]}"
            raise OpError(message, attr="axis")
    return _infer(types, attrs)


def _rows_extremum(types: Types, attrs: Attrs) -> BatchRule:
    return "whole" if 0 in normalize_axes(attrs, types[0].rank) else "rows"


def _declare_extremum(kind: str, adjective: str, word: str) -> Declaration:
    return Declaration(
        kind,
        f"The {adjective} element over axes; NaN if any element is NaN. Elements"
        " equal to the result share the gradient evenly, as in JAX. Over the"
        " batch, the batch rule is `whole`.",
        _OPERANDS,
        _infer_extremum,
        _rows_extremum,
        lambda types, attrs: types[0].numel(),
        lambda types, attrs, wrt: (
            2 * (types[0].numel() + _result_elements(types, attrs)) * len(wrt)
        ),
        attrs=_ATTRS,
        residuals=lambda types, attrs: (TensorType("bool", types[0].shape),),
        formula=f"out = {word} x; dx = dy / n where x = out, else 0, where n is the"
        " number of such elements",
        cases=(case("float32[batch, 20, 8]", axis=1), case("float32[batch, 8]")),
    )


REDUCE_MAX = _declare_extremum("reduce_max", "largest", "max")
REDUCE_MIN = _declare_extremum("reduce_min", "smallest", "min")
