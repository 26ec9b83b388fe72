"""The declarations of all computed ops, by kind."""

from __future__ import annotations

from placer.errors import OpError, did_you_mean
from placer.ops.declaration import Declaration
from placer.ops.families import FAMILIES

_DECLARED = [
    (declaration, family.__name__)
    for family in FAMILIES
    for declaration in vars(family).values()
    if isinstance(declaration, Declaration)
]

DECLARATIONS = {declaration.kind: declaration for declaration, _ in _DECLARED}

FAMILY_OF = {declaration.kind: family for declaration, family in _DECLARED}
"""Maps each kind to the name of the module that declares it."""

# A family must import another family as a module, so that each declaration counts once.
assert len(FAMILY_OF) == len(_DECLARED), "two families declare one kind"


def find(kind: str) -> Declaration:
    """Return the declaration of an op kind.

    Raises OpError for an unknown kind. The hint is the most similar kind.
    """
    declaration = DECLARATIONS.get(kind)
    if declaration is None:
        valid = [d.kind for d in DECLARATIONS.values() if not d.inserted]
        raise OpError(f"unknown op '{kind}'", hint=did_you_mean(kind, valid))
    return declaration


def kinds() -> tuple[str, ...]:
    """Return all op kinds, including those that only the compiler inserts."""
    return tuple(DECLARATIONS)
