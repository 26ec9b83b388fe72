"""Declarations shared by elementwise ops: NumPy's broadcasting and its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from placer.ops.common.checks import broadcast_rule, broadcast_shapes
from placer.ops.declaration import Attrs, BatchRule, Declaration, case
from placer.ops.operand import Operand, Types
from placer.place.types import TensorType

BROADCAST = "the same dtype; a and b are broadcast to each other"
_FLOATS = (
    Operand("a", "float, any shape", dtype="float"),
    Operand("b", BROADCAST, dtype="float", same="dtype"),
)
UNARY = (Operand("x", "float, any shape", dtype="float"),)


def declare_binary(kind: str, doc: str, **fields: Any) -> Declaration:
    """Declare an op on two floats, which are broadcast to each other."""

    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        return (TensorType(types[0].dtype, broadcast_shapes(types)),)

    return Declaration(kind, doc, _FLOATS, infer, binary_rule, result_flops, **fields)


declare_unary = partial(Declaration, operands=UNARY, cases=(case("float32[batch, 8]"),))
"""Declares an op on one float."""


def binary_rule(types: Types, attrs: Attrs) -> BatchRule:
    """Return the batch rule of an op with broadcasting."""
    return broadcast_rule(types, broadcast_shapes(types))


def result_flops(types: Types, attrs: Attrs) -> int:
    """Count one operation for each element of the result."""
    return TensorType("float32", broadcast_shapes(types)).numel()


def grad_flops(*per_operand: int) -> Callable[[Types, Attrs, Sequence[int]], int]:
    """Return `grad_flops` of an op with broadcasting.

    `per_operand` holds the operations per element of the result for each operand. The
    sum over broadcast dimensions adds one more.
    """

    def flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
        out = result_flops(types, attrs)
        summed = sum(out for i in wrt if types[i].numel() != out)
        return summed + out * sum(per_operand[i] for i in wrt)

    return flops
