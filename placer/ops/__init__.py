"""The ops: `find(kind)` is an op's declaration, `ops.fc` its function.

Importing this does not import JAX; asking for a function does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from placer.errors import OpError, did_you_mean
from placer.ops.declaration import Declaration
from placer.ops.declarations import FAMILIES

if TYPE_CHECKING:
    from placer.ops.function import Function

_DECLARATIONS = {d.kind: d for family in FAMILIES.values() for d in family}
_FAMILY = {d.kind: name for name, family in FAMILIES.items() for d in family}


def find(kind: str) -> Declaration:
    """The declaration of an op kind; OpError with the nearest valid one."""
    declaration = _DECLARATIONS.get(kind)
    if declaration is None:
        valid = [d.kind for d in _DECLARATIONS.values() if not d.inserted]
        raise OpError(f"unknown op '{kind}'", hint=did_you_mean(kind, valid))
    return declaration


def kinds() -> tuple[str, ...]:
    """All op kinds, those that the compiler inserts among them."""
    return tuple(_DECLARATIONS)


def __getattr__(name: str) -> Function:
    """The function of op kind `name`: `ops.fc`. This is what imports JAX."""
    if name not in _DECLARATIONS:
        raise AttributeError(f"placer.ops has no op '{name}'")
    from placer.ops.function import Function

    family = import_module(f"placer.ops.functions.{_FAMILY[name]}")
    function = Function(name, getattr(family, name))
    globals()[name] = function
    return function
