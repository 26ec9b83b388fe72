"""Checks shared by op declarations: operand counts, dtypes, axes and shapes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import isfinite, prod

from placer.errors import OpError
from placer.ops.declaration import Attrs, BatchRule
from placer.ops.operand import Types, operand_error
from placer.place.types import BATCH, FLOATS, ITEM_BYTES, Dim, TensorType

_LARGEST_FINITE = {
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "float32": float.fromhex("0x1.fffffep127"),
    "float64": sys.float_info.max,
}
"""The largest finite number of each float dtype."""


def is_in_range(dtype: str, value: bool | int | float) -> bool:
    """Return True if a dtype can represent a number. A float dtype may round it."""
    if dtype in FLOATS:
        return not isfinite(value) or abs(value) <= _LARGEST_FINITE[dtype]
    bits = 1 if dtype == "bool" else 8 * ITEM_BYTES[dtype]
    signed = dtype.startswith("int")
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2**bits)
    return low <= value < high and value == int(value)


def check_attr(
    attrs: Attrs, name: str, valid: bool, needed: str, spec: str = ""
) -> None:
    """Raise OpError if `valid` is false, with the attribute's value in the message.

    Args:
        needed: the valid values in words, for the message.
        spec: a format spec for the value.
    """
    if not valid:
        raise OpError(f"needs {needed}, not {attrs[name]:{spec}}", attr=name)


def check_positive(attrs: Attrs, name: str) -> None:
    """Raise OpError unless an attribute is finite and above 0."""
    valid = isfinite(attrs[name]) and attrs[name] > 0
    check_attr(attrs, name, valid, f"a finite {name} above 0")


def infer_one_type(
    names: tuple[str, str], types: Types, attrs: Attrs
) -> tuple[TensorType, ...]:
    """Return the common type of two operands; raise OpError if their types differ."""
    if types[1] != types[0]:
        needed = f"operands of the same type, '{names[0]}' is {types[0]}"
        raise operand_error(types, 1, names[1], needed)
    return (types[0],)


def check_divides(attrs: Attrs, name: str, size: int, what: str) -> None:
    """Raise OpError unless the attribute `name` (groups, heads) divides `size`.

    `what` names the value with that size, for the message.
    """
    number = attrs[name]
    if number < 1 or size % number:
        raise OpError(f"cannot divide {what} into {number} {name}", attr=name)


def normalize_axis(axis: int, rank: int, of: str = "operand") -> int:
    """Return `axis` counted from the front; raise OpError if it is out of range.

    `of` names the value with `rank` dimensions, for the message.
    """
    if not -rank <= axis < rank:
        raise OpError(
            f"has axis {axis}, but its {of} has {rank} dimensions", attr="axis"
        )
    return axis % rank


def broadcast_shapes(
    types: Types, names: Sequence[str] = ("a", "b")
) -> tuple[Dim, ...]:
    """Return the shape that operands broadcast to, by NumPy's rules.

    Raises OpError if they do not broadcast. `names` are the operands in the message.
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
                    f"cannot broadcast {shown}: {result[axis]} against {dim}",
                    operand=index,
                    hint=_alignment_hint(types),
                )
    return tuple(result)


def _alignment_hint(types: Types) -> str | None:
    ranks = {t.rank for t in types}
    if len(ranks) > 1 and any(t.shape == (BATCH,) for t in types):
        return "shapes align at the last dimension; reshape [batch] to [batch, 1]"
    return None


def broadcast_rule(types: Types, result: Sequence[Dim]) -> BatchRule:
    """Return `rows` if all batch dimensions become the result's first, else `whole`."""
    first = all(t.has_rows and t.rank == len(result) for t in types if t.has_batch)
    return "rows" if first else "whole"


def rule_along_axis(types: Types, attrs: Attrs) -> BatchRule:
    """Return the batch rule of an op that mixes elements along the attribute `axis`."""
    return "whole" if attrs["axis"] % types[0].rank == 0 else "rows"


def without(shape: Sequence[Dim], axis: int) -> tuple[Dim, ...]:
    """Return a shape without one of its dimensions."""
    return (*shape[:axis], *shape[axis + 1 :])


def is_static(shape: Sequence[Dim]) -> bool:
    """Return True if all dimensions of a shape are numbers."""
    return all(isinstance(d, int) for d in shape)


def count_elements(shape: Sequence[Dim]) -> int:
    """Return the number of elements of a shape, ignoring `batch`."""
    assert is_static(shape), shape
    return prod(int(d) for d in shape)
