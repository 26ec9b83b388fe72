"""Infers the result types of structural ops. Raises OpError for wrong operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from placer.errors import OpError
from placer.place.types import KEYS, TensorType, ValueType
from placer.plan.settings.sparse.exact_sums import LIMBS

if TYPE_CHECKING:
    from placer.compiler.graph.graph import Op

EXACT_SUM = TensorType("int64", (LIMBS,))
"""The type of a sum without rounding; see `placer.tables.exact_squares`."""

DISTINCT_KEYS = TensorType("key", (KEYS,))
"""The type of the distinct keys of a batch."""


def operand_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    return operands


def update_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    """Return the type of the parameter. The gradient must have the same type; further
    operands are scales."""
    check_equal_types(op, operands[:2], 2)
    return operands[:1]


def store_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    check_equal_types(op, operands, 2)
    return ()


def distinct_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    ids = operands[: count_ids(op)]
    return [DISTINCT_KEYS, *(TensorType("int32", each.shape) for each in ids)]


def count_ids(op: Op) -> int:
    """Return how many operands of an op that collects keys hold keys. They come first."""
    inputs = op.attrs.get("inputs", {})
    return len(op.operands) - sum(map(len, inputs.values()))


def lookup_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    table, keys = operands
    if not table.is_keyed or keys != DISTINCT_KEYS:
        raise OpError(f"needs a sparse table and keys, not {table} and {keys}")
    return [table]


def sum_by_key_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    width = 1 + len(op.results)
    lookups = [operands[i : i + width] for i in range(0, len(operands), width)]
    if any(len(each) < width or each[0] != DISTINCT_KEYS for each in lookups):
        raise OpError("needs keys, each with the gradients of their rows in each table")
    _, *gradients = lookups[0]
    if any(each != lookups[0] for each in lookups):
        raise OpError("needs gradients of the same tables for all keys")
    return gradients


def exact_squares_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    return [EXACT_SUM]


def rounded_sum_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    if {*operands} != {EXACT_SUM}:
        raise OpError(f"needs exact sums, of type {EXACT_SUM}")
    return [TensorType(op.attrs["dtype"])]


def cut_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    check_equal_types(op, operands, 1)
    start, stop = op.attrs["start"], op.attrs["stop"]
    if not 0 <= start < stop <= operands[0].numel():
        raise OpError(f"{operands[0]} has no elements {start} to {stop}")
    return [TensorType(operands[0].dtype, (stop - start,))]


def assemble_types(op: Op, operands: Sequence[TensorType]) -> Sequence[ValueType]:
    whole = op.result.type
    assert isinstance(whole, TensorType)
    numel = sum(block.numel() for block in operands)
    if numel != whole.numel() or any(block.dtype != whole.dtype for block in operands):
        raise OpError(f"the blocks have {numel} elements, which do not form {whole}")
    return [whole]


def check_equal_types(op: Op, operands: Sequence[TensorType], count: int) -> None:
    """Raise OpError unless the op has `count` operands of the same type."""
    if len(operands) != count:
        raise OpError(f"{op.kind} needs {count} operands, not {len(operands)}")
    for name, operand in zip(op.operands, operands, strict=False):
        if operand != operands[0]:
            raise OpError(
                f"'{op.operands[0]}' is {operands[0]}, but '{name}' is {operand}"
            )
