"""reduce_sum, reduce_mean, reduce_max, reduce_min: fewer dimensions."""

from __future__ import annotations

from collections.abc import Callable

from placer.errors import OpError
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
from placer.types import Dim, TensorType

_ONE = (Operand("x", "float, any shape"),)
_ATTRS = (
    Attr(
        "axis",
        int | list[int] | None,
        "the axes that go; null: all of them",
        default=None,
    ),
    Attr("keepdims", bool, "keep them as dimensions of 1", default=False),
)


def axes(kind: str, attrs: Attrs, rank: int, of: str = "operand") -> tuple[int, ...]:
    """The axes that `axis` names, in order; OpError when one is not there."""
    given = attrs["axis"]
    if given is None:
        return tuple(range(rank))
    found = [
        normal_axis(kind, axis, rank, of)
        for axis in ([given] if isinstance(given, int) else given)
    ]
    if len(set(found)) != len(found):
        raise OpError(f"{kind} names an axis twice: {given}", attr="axis")
    return tuple(sorted(found))


def _infer(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        arity(kind, _ONE, types)
        need_float(kind, "x", types, 0)
        gone = axes(kind, attrs, types[0].rank)
        shape: list[Dim] = []
        for axis, dim in enumerate(types[0].shape):
            if axis not in gone:
                shape.append(dim)
            elif attrs["keepdims"]:
                shape.append(1)
        return (TensorType(types[0].dtype, tuple(shape)),)

    return infer


def _rows(types: Types, attrs: Attrs) -> Rule:
    return "reduce" if 0 in axes("reduce", attrs, types[0].rank) else "rows"


def _counts(types: Types, attrs: Attrs) -> bool:
    return types[0].has_rows and 0 in axes("reduce_mean", attrs, types[0].rank)


def _out(types: Types, attrs: Attrs) -> int:
    return _infer("reduce")(types, attrs)[0].numel()


_CASES = (
    Case(("float32[batch, 8]",)),
    Case(("float32[batch, 8]",), {"axis": 1}),
    Case(("float32[batch, 8]",), {"axis": 0, "keepdims": True}),
)

REDUCE_SUM = Declaration(
    "reduce_sum",
    "The sum over axes.",
    _ONE,
    _infer("reduce_sum"),
    _rows,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: 0,
    attrs=_ATTRS,
    linear=lambda types, attrs: ((0,),),
    formula="out = Σ x",
    cases=_CASES,
    example="{name: total, op: reduce_sum, in: squares}",
)
REDUCE_MEAN = Declaration(
    "reduce_mean",
    "The mean over axes; over the batch it divides by the rows of the global batch.",
    _ONE,
    _infer("reduce_mean"),
    _rows,
    lambda types, attrs: types[0].numel() + _out(types, attrs),
    lambda types, attrs, wrt: _out(types, attrs) * len(wrt),
    attrs=_ATTRS,
    linear=lambda types, attrs: ((0,),),
    counts=_counts,
    formula="out = Σ x / n, n the number of elements that go into one",
    cases=_CASES,
    example="{name: pooled, op: reduce_mean, in: tokens, axis: 1}",
)


def _infer_extreme(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        results = _infer(kind)(types, attrs)
        for axis in axes(kind, attrs, types[0].rank):
            if types[0].shape[axis] == 0:
                raise OpError(
                    f"{kind} finds nothing along axis {axis} of 'x' {types[0]}",
                    attr="axis",
                )
        return results

    return infer


def _rows_extreme(types: Types, attrs: Attrs) -> Rule:
    return "whole" if 0 in axes("reduce", attrs, types[0].rank) else "rows"


def _extreme(kind: str, adjective: str, word: str) -> Declaration:
    return Declaration(
        kind,
        f"The {adjective} element over axes; NaN where there is one. Equal ones share"
        " the gradient evenly, as in JAX. Over the batch it is no sum: it needs the"
        " whole of it.",
        _ONE,
        _infer_extreme(kind),
        _rows_extreme,
        lambda types, attrs: types[0].numel(),
        lambda types, attrs, wrt: (
            2 * (types[0].numel() + _out(types, attrs)) * len(wrt)
        ),
        attrs=_ATTRS,
        residuals=lambda types, attrs: (TensorType("bool", types[0].shape),),
        formula=f"out = {word} x; dx = dy / n where x = out, 0 elsewhere, n the number"
        " of such elements",
        cases=(
            Case(("float32[batch, 20, 8]",), {"axis": 1}),
            Case(("float32[batch, 8]",)),
        ),
        example=f"{{name: pooled, op: {kind}, in: tokens, axis: 1}}",
    )


REDUCE_MAX = _extreme("reduce_max", "largest", "max")
REDUCE_MIN = _extreme("reduce_min", "least", "min")

DECLARATIONS = (REDUCE_SUM, REDUCE_MEAN, REDUCE_MAX, REDUCE_MIN)
