"""constant: a fixed number."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.common.checks import is_in_range
from placer.ops.declaration import Attr, Attrs, Declaration, case, required
from placer.ops.operand import INTEGERS, Types
from placer.place.types import FLOATS, TensorType


def _infer_constant(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    dtype, value = attrs["dtype"], attrs["value"]
    if dtype not in FLOATS | INTEGERS | {"bool"}:
        raise OpError(f"cannot be of dtype '{dtype}'", attr="dtype")
    numbers = bool if dtype == "bool" else int if dtype in INTEGERS else int | float
    fits = isinstance(value, numbers) and isinstance(value, bool) == (dtype == "bool")
    if not fits or not is_in_range(dtype, value):
        raise OpError(f"cannot hold {value!r} as {dtype}", attr="value")
    shape = tuple(attrs["shape"])
    if any(d < 0 for d in shape):
        raise OpError(f"cannot have the shape {list(shape)}", attr="shape")
    return (TensorType(dtype, shape),)


CONSTANT = Declaration(
    "constant",
    "An array of a given shape filled with one number. It is never sent, because"
    " each node computes it. The gradient of the loss with respect to itself is"
    " such a constant.",
    (),
    _infer_constant,
    lambda types, attrs: "whole",
    attrs=(
        required("value", bool | int | float, "the number"),
        Attr(
            "dtype",
            str,
            "the dtype of the result; int64, uint64 and float64 require"
            " `precision: float64` in the spec",
            default="float32",
        ),
        Attr("shape", list[int], "the shape of the result", default=()),
    ),
    differentiable=False,
    formula="out = value",
    cases=(case(value=1.0),),
)
