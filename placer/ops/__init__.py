"""The computed ops: `find(kind)` returns an op's declaration, `ops.fc` its function.

Importing this package does not import JAX. The first access to a function does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from placer.ops.registry import DECLARATIONS, FAMILY_OF
from placer.ops.registry import find as find
from placer.ops.registry import kinds as kinds

if TYPE_CHECKING:
    from placer.ops.function import Function
    from placer.ops.saved import Saved


def __getattr__(name: str) -> Function | type[Saved]:
    """Return the function of an op kind, as in `ops.fc`. Imports JAX."""
    if name == "Saved":
        from placer.ops.saved import Saved

        return Saved
    if name not in DECLARATIONS:
        raise AttributeError(f"placer.ops has no op '{name}'")
    from placer.ops.function import Function

    # linear/dense.py declares ops, and linear/dense_jax.py defines their functions.
    family = import_module(f"{FAMILY_OF[name]}_jax")
    function = Function(name, getattr(family, name))
    globals()[name] = function
    return function
