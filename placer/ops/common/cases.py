"""Cases of the op reference that differ in their attributes only."""

from __future__ import annotations

from placer.ops.declaration import Attrs, Case


def cases_with(operands: tuple[str, ...], *attrs: Attrs) -> tuple[Case, ...]:
    """Return a case for each of `attrs`, all with the same operands."""
    return tuple(Case(operands, written) for written in attrs)
