"""Checks that declarations share: operand counts, dtypes, axes and shapes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isfinite, prod

from placer.errors import OpError
from placer.ops.declaration import Attrs, BatchRule, Operand, Types
from placer.types import BATCH, FLOATS, ITEM_BYTES, Dim

INTEGERS = frozenset(
    {"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"}
)


def check_arity(kind: str, operands: Sequence[Operand], types: Types) -> None:
    """Raise OpError if the number of operands is not one that `operands` allows."""
    minimum = sum(not operand.optional for operand in operands)
    maximum = None if operands and operands[-1].variadic else len(operands)
    if len(types) < minimum or (maximum is not None and len(types) > maximum):
        bounds = f"at least {minimum}" if maximum is None else f"{minimum}"
        if maximum is not None and maximum != minimum:
            bounds = f"{minimum} to {maximum}"
        names = ", ".join(operand.name for operand in operands)
        noun = "operand" if bounds.endswith("1") else "operands"
        raise OpError(f"{kind} needs {bounds} {noun} ({names}), {len(types)} given")


def require_float(kind: str, name: str, types: Types, index: int) -> None:
    """Raise OpError if operand `index` does not have a float dtype."""
    if not types[index].is_float:
        raise OpError(
            f"{kind} needs a float operand as '{name}', not {types[index]}",
            operand=index,
        )


def require_integer(kind: str, name: str, types: Types, index: int) -> None:
    """Raise OpError if operand `index` does not have an integer dtype."""
    if types[index].dtype not in INTEGERS:
        raise OpError(
            f"{kind} needs an integer operand as '{name}', not {types[index]}",
            operand=index,
        )


def require_same_dtype(kind: str, names: Sequence[str], types: Types) -> None:
    """Raise OpError if an operand does not have the dtype of the first.

    The last of `names` is used for all operands beyond them.
    """
    for index, type_ in enumerate(types):
        if type_.dtype != types[0].dtype:
            name = names[min(index, len(names) - 1)]
            raise OpError(
                f"{kind} needs operands of one dtype,"
                f" '{names[0]}' is {types[0]}, '{name}' is {type_}",
                operand=index,
            )


_LARGEST_FINITE = {
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "float32": float.fromhex("0x1.fffffep127"),
    "float64": sys.float_info.max,
}
"""The largest finite number of each float dtype."""


def is_in_range(dtype: str, value: bool | int | float) -> bool:
    """Whether a dtype can represent a number; a float dtype may round it."""
    if dtype in FLOATS:
        return not isfinite(value) or abs(value) <= _LARGEST_FINITE[dtype]
    bits = 1 if dtype == "bool" else 8 * ITEM_BYTES[dtype]
    signed = dtype.startswith("int")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    return low <= value < high and value == int(value)


def normalize_axis(kind: str, axis: int, rank: int, of: str = "operand") -> int:
    """Return `axis` counted from the front; raise OpError if it is out of range.

    `of` names the value that has `rank` dimensions, for the message.
    """
    if not -rank <= axis < rank:
        raise OpError(
            f"{kind} has axis {axis}, its {of} has {rank} dimensions", attr="axis"
        )
    return axis % rank


def broadcast_shapes(kind: str, names: Sequence[str], types: Types) -> tuple[Dim, ...]:
    """Return the shape that operands broadcast to, by numpy's rules.

    Raises OpError if they cannot be broadcast.
    """
    rank = max(t.rank for t in types)
    result: list[Dim] = [1] * rank
    for index, type_ in enumerate(types):
        for axis, dim in enumerate(type_.shape, start=rank - type_.rank):
            if result[axis] in (1, dim):
                result[axis] = dim
            elif dim != 1:
                shown = " and ".join(
                    f"'{n}' {t}" for n, t in zip(names, types, strict=True)
                )
                raise OpError(
                    f"{kind} cannot broadcast {shown}: {result[axis]} against {dim}",
                    operand=index,
                    hint=_alignment_hint(types),
                )
    return tuple(result)


def _alignment_hint(types: Types) -> str | None:
    """Return a hint for [batch] combined with an operand of higher rank."""
    ranks = {t.rank for t in types}
    if len(ranks) > 1 and any(t.shape == (BATCH,) for t in types):
        return "shapes align at the last dimension; reshape [batch] to [batch, 1]"
    return None


def broadcast_rule(types: Types, result: Sequence[Dim]) -> BatchRule:
    """Return `rows` if each batch dimension is the result's first, else `whole`."""
    first = all(t.has_rows and t.rank == len(result) for t in types if t.has_batch)
    return "rows" if first else "whole"


def rowwise(types: Types, attrs: Attrs) -> BatchRule:
    """The batch rule of an op whose row i depends only on row i of its operands."""
    return "rows"


def is_static(shape: Sequence[Dim]) -> bool:
    """Whether no dimension of a shape is the batch."""
    return BATCH not in shape


def count_elements(shape: Sequence[Dim]) -> int:
    """Return the number of elements of a shape without `batch`."""
    assert is_static(shape), shape
    return prod(int(d) for d in shape)
