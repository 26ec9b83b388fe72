"""The runtime of compiled nodes. Node programs import `Node` and `main` from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placer.runtime.node.node import Node as Node
    from placer.runtime.process.entry_point import main as main

_MODULES = {
    "Node": "placer.runtime.node.node",
    "main": "placer.runtime.process.entry_point",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'placer.runtime' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
