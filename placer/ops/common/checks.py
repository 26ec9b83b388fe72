"""What declarations check and work out alike: operand counts, dtypes, axes, shapes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isfinite, prod

from placer.errors import OpError
from placer.ops.declaration import Attrs, Operand, Rule, Types
from placer.types import BATCH, FLOATS, ITEM_BYTES, Dim

INTEGERS = frozenset(
    {"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"}
)


def arity(kind: str, operands: Sequence[Operand], types: Types) -> None:
    """OpError unless as many operands are given as `operands` allows."""
    least = sum(not operand.optional for operand in operands)
    most = None if operands and operands[-1].variadic else len(operands)
    if len(types) < least or (most is not None and len(types) > most):
        bounds = f"at least {least}" if most is None else f"{least}"
        if most is not None and most != least:
            bounds = f"{least} to {most}"
        names = ", ".join(operand.name for operand in operands)
        noun = "operand" if bounds.endswith("1") else "operands"
        raise OpError(f"{kind} needs {bounds} {noun} ({names}), {len(types)} given")


def need_float(kind: str, name: str, types: Types, index: int) -> None:
    """OpError unless operand `index` is of a float dtype."""
    if not types[index].is_float:
        raise OpError(
            f"{kind} needs a float operand as '{name}', not {types[index]}",
            operand=index,
        )


def need_integer(kind: str, name: str, types: Types, index: int) -> None:
    """OpError unless operand `index` is of an integer dtype."""
    if types[index].dtype not in INTEGERS:
        raise OpError(
            f"{kind} needs an integer operand as '{name}', not {types[index]}",
            operand=index,
        )


def need_same_dtype(kind: str, names: Sequence[str], types: Types) -> None:
    """OpError unless all operands have the dtype of the first."""
    for index, type_ in enumerate(types):
        if type_.dtype != types[0].dtype:
            name = names[min(index, len(names) - 1)]
            raise OpError(
                f"{kind} needs operands of one dtype,"
                f" '{names[0]}' is {types[0]}, '{name}' is {type_}",
                operand=index,
            )


_LARGEST = {
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "float32": float.fromhex("0x1.fffffep127"),
    "float64": sys.float_info.max,
}
"""The largest finite number of each float dtype."""


def holds(dtype: str, value: bool | int | float) -> bool:
    """Whether a number is in the range of a dtype; as a float it may be rounded."""
    if dtype in FLOATS:
        return not isfinite(value) or abs(value) <= _LARGEST[dtype]
    bits = 1 if dtype == "bool" else 8 * ITEM_BYTES[dtype]
    signed = dtype.startswith("int")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    return low <= value < high and value == int(value)


def normal_axis(kind: str, axis: int, rank: int, of: str = "operand") -> int:
    """`axis` counted from the front; OpError when the value has no such axis."""
    if not -rank <= axis < rank:
        raise OpError(
            f"{kind} has axis {axis}, its {of} has {rank} dimensions", attr="axis"
        )
    return axis % rank


def broadcast(kind: str, names: Sequence[str], types: Types) -> tuple[Dim, ...]:
    """The shape of operands put together by numpy's broadcasting rule."""
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
                    hint=_alignment(types),
                )
    return tuple(result)


def _alignment(types: Types) -> str | None:
    """A hint where a value of one number per row meets one of several."""
    ranks = {t.rank for t in types}
    if len(ranks) > 1 and any(t.shape == (BATCH,) for t in types):
        return "shapes align at the last dimension; reshape [batch] to [batch, 1]"
    return None


def aligned_rows(types: Types, result: Sequence[Dim]) -> Rule:
    """`rows` where every batch dimension is the first of the result, else `whole`."""
    first = all(t.has_rows and t.rank == len(result) for t in types if t.has_batch)
    return "rows" if first else "whole"


def each_row(types: Types, attrs: Attrs) -> Rule:
    """The batch rule of an op whose row i depends on row i of its operands."""
    return "rows"


def ints(shape: Sequence[Dim]) -> bool:
    """Whether no dimension is the batch."""
    return BATCH not in shape


def elements(shape: Sequence[Dim]) -> int:
    """How many elements a shape free of `batch` has."""
    assert ints(shape), shape
    return prod(int(d) for d in shape)
