"""Operands by name, for ops whose optional operands stand before others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.errors import OpError
from placer.ops.declaration import Types
from placer.types import Dim, TensorType


def by_name(names: Sequence[str], types: Types) -> dict[str, TensorType]:
    """The types by the operands' names."""
    return dict(zip(names, types, strict=True))


def need_shapes(
    kind: str,
    names: Sequence[str],
    types: Types,
    shapes: Mapping[str, Sequence[Dim]],
) -> None:
    """OpError unless each operand named in `shapes` has the first operand's dtype and
    that shape; the names of `shapes` that are not given do not count."""
    for index, (name, type_) in enumerate(zip(names, types, strict=True)):
        if name not in shapes:
            continue
        wanted = TensorType(types[0].dtype, tuple(shapes[name]))
        if type_ != wanted:
            raise OpError(
                f"{kind} needs '{name}' {wanted} for '{names[0]}' {types[0]},"
                f" '{name}' is {type_}",
                operand=index,
            )
