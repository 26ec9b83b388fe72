"""top_k, argmax, argmin: which elements are the largest, or the least."""

from __future__ import annotations

from collections.abc import Callable

from placer.errors import OpError
from placer.ops.common.checks import arity, each_row, need_float, normal_axis
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Rule,
    Types,
)
from placer.types import BATCH, TensorType

_ONE = (Operand("x", "float, at least one dimension"),)


def _check(kind: str, types: Types) -> None:
    arity(kind, _ONE, types)
    need_float(kind, "x", types, 0)


def _infer_top_k(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check("top_k", types)
    (x,), k = types, attrs["k"]
    if not x.rank or x.shape[-1] == BATCH:
        raise OpError(
            f"top_k needs a last dimension, which is not the batch, 'x' is {x}",
            operand=0,
        )
    if not 1 <= k <= int(x.shape[-1]):
        raise OpError(f"top_k cannot take {k} of {x.shape[-1]}, 'x' is {x}", attr="k")
    shape = (*x.shape[:-1], k)
    return TensorType(x.dtype, shape), TensorType("int32", shape)


TOP_K = Declaration(
    "top_k",
    "The largest elements along the last axis, in order from the largest on, and where"
    " they stand; of equal ones the first comes first. The gradient goes through the"
    " values.",
    _ONE,
    _infer_top_k,
    each_row,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: _infer_top_k(types, attrs)[0].numel() * len(wrt),
    attrs=(Attr("k", int, "how many", required=True),),
    results=("values", "indices"),
    residuals=lambda types, attrs: _infer_top_k(types, attrs)[1:],
    formula="values = x[indices], the k largest; dx[indices] = dvalues, 0 elsewhere",
    source="jax.lax.top_k, tf.math.top_k",
    cases=(Case(("float32[batch, 100]",), {"k": 5}),),
    example="{name: best, op: top_k, in: scores, k: 5}",
)

_ATTRS = (
    Attr("axis", int, "the axis along which it is sought", default=-1),
    Attr("keepdims", bool, "keep it as a dimension of 1", default=False),
)


def _infer_arg(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        _check(kind, types)
        (x,) = types
        axis = normal_axis(kind, attrs["axis"], x.rank)
        if x.shape[axis] == 0:
            raise OpError(
                f"{kind} finds nothing along axis {axis} of 'x' {x}", attr="axis"
            )
        kept = (1,) if attrs["keepdims"] else ()
        return (TensorType("int32", (*x.shape[:axis], *kept, *x.shape[axis + 1 :])),)

    return infer


def _rows_arg(types: Types, attrs: Attrs) -> Rule:
    return "whole" if normal_axis("arg", attrs["axis"], types[0].rank) == 0 else "rows"


def _arg(kind: str, adjective: str) -> Declaration:
    return Declaration(
        kind,
        f"Where the {adjective} element stands along an axis; of equal ones the first"
        " counts, and NaN before any number. It has no gradient.",
        _ONE,
        _infer_arg(kind),
        _rows_arg,
        lambda types, attrs: types[0].numel(),
        lambda types, attrs, wrt: 0,
        attrs=_ATTRS,
        differentiable=False,
        formula=f"out = {kind} x",
        source=f"numpy.{kind}",
        cases=(
            Case(("float32[batch, 10]",)),
            Case(("float32[batch, 10]",), {"axis": 0}),
        ),
        example=f"{{name: found, op: {kind}, in: logits}}",
    )


ARGMAX = _arg("argmax", "largest")
ARGMIN = _arg("argmin", "least")

DECLARATIONS = (TOP_K, ARGMAX, ARGMIN)
