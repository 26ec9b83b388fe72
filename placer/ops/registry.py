"""The declarations by kind."""

from __future__ import annotations

from placer.errors import OpError, did_you_mean
from placer.ops.declaration import Declaration
from placer.ops.families import FAMILIES

DECLARATIONS: dict[str, Declaration] = {
    declaration.kind: declaration
    for family in FAMILIES
    for declaration in family.DECLARATIONS
}

FAMILY_OF = {
    declaration.kind: family.__name__
    for family in FAMILIES
    for declaration in family.DECLARATIONS
}
"""The module that declares each kind."""


def find(kind: str) -> Declaration:
    """The declaration of an op kind; OpError with the nearest valid one."""
    declaration = DECLARATIONS.get(kind)
    if declaration is None:
        valid = [d.kind for d in DECLARATIONS.values() if not d.inserted]
        raise OpError(f"unknown op '{kind}'", hint=did_you_mean(kind, valid))
    return declaration


def kinds() -> tuple[str, ...]:
    """All op kinds, those that the compiler inserts among them."""
    return tuple(DECLARATIONS)
