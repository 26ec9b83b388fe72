"""cast: conversion to another dtype."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.common.costs import flops_per_element, grad_flops_per_element
from placer.ops.declaration import Attrs, Declaration, case, required
from placer.ops.operand import INTEGERS, Operand, Types
from placer.place.types import FLOATS, ITEM_BYTES, TensorType

_DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    if types[0].dtype not in FLOATS | INTEGERS | {"bool"}:
        raise OpError(f"needs numbers, 'x' is {types[0]}", operand=0)
    return (TensorType(attrs["dtype"], types[0].shape),)


def _linear(types: Types, attrs: Attrs) -> tuple[tuple[int, ...], ...]:
    # If the cast rounds, the sum of rounded parts is not the rounded sum
    source, target = types[0].dtype, attrs["dtype"]
    widens = {source, target} <= FLOATS and ITEM_BYTES[source] < ITEM_BYTES[target]
    return ((0,),) if widens or source == target in FLOATS else ()


CAST = Declaration(
    "cast",
    "Converts x to another dtype. Floats are rounded towards 0 to integers. A"
    " bool becomes 0 or 1, and any number but 0 becomes true. Gradients flow only"
    " from float to float, in the dtype of x.",
    (Operand("x", "float, integer or bool, any shape"),),
    _infer,
    flops=flops_per_element(1),
    grad_flops=grad_flops_per_element(1),
    attrs=(
        required(
            "dtype",
            str,
            "the dtype of the result; float64 requires `precision: float64` in the"
            " spec",
            choices=_DTYPES,
        ),
    ),
    linear=_linear,
    formula="out = x as dtype; dx = dy as the dtype of x",
    cases=(
        case("int32[batch, 8]", dtype="float32"),
        case("bfloat16[batch, 8]", dtype="float32"),
        case("float32[batch, 8]", dtype="bfloat16"),
    ),
)
