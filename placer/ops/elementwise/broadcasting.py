"""Declarations shared by elementwise ops: numpy's broadcasting and its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placer.ops.common.checks import (
    broadcast_rule,
    broadcast_shapes,
    check_arity,
    require_float,
    require_same_dtype,
)
from placer.ops.declaration import Attrs, BatchRule, Operand, Types
from placer.types import Dim, TensorType

BINARY_NAMES = ("a", "b")
BINARY = (
    Operand("a", "float, any shape"),
    Operand("b", "the same dtype; a and b are broadcast to each other"),
)
UNARY = (Operand("x", "float, any shape"),)


def infer_binary(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    """Return `infer` of an op on two floats of one dtype, which are broadcast."""

    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        check_arity(kind, BINARY, types)
        for index, name in enumerate(BINARY_NAMES):
            require_float(kind, name, types, index)
        require_same_dtype(kind, BINARY_NAMES, types)
        return (
            TensorType(types[0].dtype, broadcast_shapes(kind, BINARY_NAMES, types)),
        )

    return infer


def infer_unary(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    """Return `infer` of an op on one float, whose result has the operand's type."""

    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        check_arity(kind, UNARY, types)
        require_float(kind, "x", types, 0)
        return (types[0],)

    return infer


def _shape(types: Types) -> tuple[Dim, ...]:
    """Return the shape of operands that are known to broadcast."""
    return broadcast_shapes("elementwise", [""] * len(types), types)


def binary_rule(types: Types, attrs: Attrs) -> BatchRule:
    """The batch rule of an op with broadcasting."""
    return broadcast_rule(types, _shape(types))


def result_flops(types: Types, attrs: Attrs) -> int:
    """Count one operation for each element of the result."""
    return TensorType("float32", _shape(types)).numel()


def grad_flops(*per_operand: int) -> Callable[[Types, Attrs, Sequence[int]], int]:
    """Return `grad_flops` of an op with broadcasting.

    `per_operand` are the operations per element of the result for each operand. The sum
    over broadcast dimensions adds one more.
    """

    def flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
        out = result_flops(types, attrs)
        summed = sum(out for i in wrt if types[i].numel() != out)
        return summed + out * sum(per_operand[i] for i in wrt)

    return flops
