"""Operands by name, for ops with optional operands that precede others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.errors import OpError
from placer.ops.operand import Types
from placer.types import Dim, TensorType


def types_by_name(names: Sequence[str], types: Types) -> dict[str, TensorType]:
    """Return the operand types by the operands' names."""
    return dict(zip(names, types, strict=True))


def require_shapes(
    kind: str, names: Sequence[str], types: Types, shapes: Mapping[str, Sequence[Dim]]
) -> None:
    """Raise OpError if an operand named in `shapes` has another dtype or shape.

    The dtype must be that of the first operand. Names of absent operands are ignored.
    """
    for index, (name, type_) in enumerate(zip(names, types, strict=True)):
        if name not in shapes:
            continue
        expected = TensorType(types[0].dtype, tuple(shapes[name]))
        if type_ != expected:
            raise OpError(
                f"{kind} needs '{name}' {expected} for '{names[0]}' {types[0]},"
                f" '{name}' is {type_}",
                operand=index,
            )
