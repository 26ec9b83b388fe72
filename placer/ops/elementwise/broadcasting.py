"""Declarations shared by elementwise ops: numpy's broadcasting and its cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from placer.ops.common.checks import broadcast_rule, broadcast_shapes
from placer.ops.common.costs import flops_per_element, grad_flops_per_element
from placer.ops.declaration import Attrs, BatchRule, Case, Declaration
from placer.ops.operand import Operand, Types
from placer.types import Dim, TensorType

BINARY_NAMES = ("a", "b")
_BROADCAST = "the same dtype; a and b are broadcast to each other"
_FLOATS = (
    Operand("a", "float, any shape", dtype="float"),
    Operand("b", _BROADCAST, dtype="float", same=True),
)
_NUMBERS = (
    Operand("a", "float or integer, any shape", dtype="number"),
    Operand("b", _BROADCAST, dtype="number", same=True),
)
UNARY = (Operand("x", "float, any shape", dtype="float"),)


def declare_binary(
    kind: str,
    doc: str,
    formula: str,
    example: str,
    per_operand: tuple[int, int] = (0, 0),
    *,
    condition: bool = False,
    **fields: Any,
) -> Declaration:
    """Declare an op on two floats, which are broadcast to each other.

    `per_operand` is as in `grad_flops`. A `condition` is bool, also accepts
    integers and has no gradient.
    """

    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        dtype = "bool" if condition else types[0].dtype
        return (TensorType(dtype, broadcast_shapes(kind, BINARY_NAMES, types)),)

    return Declaration(
        kind,
        doc,
        _NUMBERS if condition else _FLOATS,
        infer,
        binary_rule,
        result_flops,
        **(
            {"differentiable": False}
            if condition
            else {"grad_flops": grad_flops(*per_operand)}
        ),
        formula=formula,
        example=example,
        **fields,
    )


def declare_unary(
    kind: str,
    doc: str,
    formula: str,
    example: str,
    flops: int,
    grad: int,
    **fields: Any,
) -> Declaration:
    """Declare an op on one float, of the operations per element for each direction."""
    return Declaration(
        kind,
        doc,
        UNARY,
        flops=flops_per_element(flops),
        grad_flops=grad_flops_per_element(grad),
        formula=formula,
        example=example,
        **{"cases": (Case(("float32[batch, 8]",)),), **fields},
    )


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
