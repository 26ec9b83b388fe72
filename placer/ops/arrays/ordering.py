"""top_k, argmax and argmin."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.common.checks import normalize_axis, rule_along_axis
from placer.ops.declaration import Attr, Attrs, Declaration, case, flag, required
from placer.ops.operand import Operand, Types
from placer.place.types import BATCH, TensorType

_OPERANDS = (Operand("x", "float, at least one dimension", dtype="float"),)


def _infer_top_k(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,), k = types, attrs["k"]
    if not x.rank or x.shape[-1] == BATCH:
        message = f"needs a last dimension other than the batch, 'x' is {x}"
        raise OpError(message, operand=0)
    if not 1 <= k <= int(x.shape[-1]):
        raise OpError(
            f"cannot take {k} of {x.shape[-1]} elements, 'x' is {x}", attr="k"
        )
    shape = (*x.shape[:-1], k)
    return TensorType(x.dtype, shape), TensorType("int32", shape)


TOP_K = Declaration(
    "top_k",
    "The k largest elements along the last axis in descending order, and their"
    " indices. Equal elements are ordered by index. Only `values` has a gradient,"
    " which goes to the selected elements, as in JAX.",
    _OPERANDS,
    _infer_top_k,
    flops=lambda types, attrs: types[0].numel(),
    grad_flops=lambda types, attrs, wrt: (
        _infer_top_k(types, attrs)[0].numel() * len(wrt)
    ),
    attrs=(required("k", int, "the number of elements, at least 1"),),
    results=("values", "indices"),
    residuals=lambda types, attrs: _infer_top_k(types, attrs)[1:],
    formula="values = x[indices], the k largest; dx[indices] = dvalues, 0 elsewhere",
    source="jax.lax.top_k, tf.math.top_k",
    cases=(case("float32[batch, 100]", k=5),),
)

_ATTRS = (
    Attr("axis", int, "the axis to search", default=-1),
    flag("keepdims", "whether to keep the axis with size 1"),
)


def _infer_arg(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    axis = normalize_axis(attrs["axis"], x.rank)
    if x.shape[axis] == 0:
        raise OpError(f"finds no element along axis {axis} of 'x' {x}", attr="axis")
    kept = (1,) if attrs["keepdims"] else ()
    return (TensorType("int32", (*x.shape[:axis], *kept, *x.shape[axis + 1 :])),)


def _declare_arg(kind: str, adjective: str) -> Declaration:
    return Declaration(
        kind,
        f"The index of the {adjective} element along an axis, int32. Among equal"
        " elements the first is chosen. NaN comes before any number. It has no"
        " gradient.",
        _OPERANDS,
        _infer_arg,
        rule_along_axis,
        lambda types, attrs: types[0].numel(),
        attrs=_ATTRS,
        differentiable=False,
        formula=f"out = {kind} x",
        source=f"numpy.{kind}",
        cases=(case("float32[batch, 10]"), case("float32[batch, 10]", axis=0)),
    )


ARGMAX = _declare_arg("argmax", "largest")
ARGMIN = _declare_arg("argmin", "smallest")
