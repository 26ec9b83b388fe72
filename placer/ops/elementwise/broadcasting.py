"""What elementwise ops declare alike: broadcasting as numpy has it, and its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placer.ops.common.checks import (
    aligned_rows,
    arity,
    broadcast,
    need_float,
    need_same_dtype,
)
from placer.ops.declaration import Attrs, Operand, Rule, Types
from placer.types import Dim, TensorType

NAMES = ("a", "b")
PAIR = (Operand("a", "float, any shape"), Operand("b", "float, broadcast to a"))
ONE = (Operand("x", "float, any shape"),)


def infer_pair(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    """The result of two floats of one dtype, broadcast to each other."""

    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        arity(kind, PAIR, types)
        for index, name in enumerate(NAMES):
            need_float(kind, name, types, index)
        need_same_dtype(kind, NAMES, types)
        return (TensorType(types[0].dtype, broadcast(kind, NAMES, types)),)

    return infer


def infer_one(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    """The result of one float: its own type."""

    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        arity(kind, ONE, types)
        need_float(kind, "x", types, 0)
        return (types[0],)

    return infer


def _shape(types: Types) -> tuple[Dim, ...]:
    """The shape of operands that are known to fit."""
    return broadcast("elementwise", [""] * len(types), types)


def rows(types: Types, attrs: Attrs) -> Rule:
    """`rows` where every batch dimension is the first of the result, else `whole`."""
    return aligned_rows(types, _shape(types))


def once(types: Types, attrs: Attrs) -> int:
    """One operation for each element of the result."""
    return TensorType("float32", _shape(types)).numel()


def grad_flops(*per_operand: int) -> Callable[[Types, Attrs, Sequence[int]], int]:
    """Operations per result element for each operand, and the sums of broadcasting."""

    def flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
        out = once(types, attrs)
        summed = sum(out for i in wrt if types[i].numel() != out)
        return summed + out * sum(per_operand[i] for i in wrt)

    return flops
