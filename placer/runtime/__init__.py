"""What a compiled node runs on. A program needs `Node` and `main` of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placer.runtime.program.node import Node as Node
    from placer.runtime.run.process import main as main

_WHERE = {"Node": "placer.runtime.program.node", "main": "placer.runtime.run.process"}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'placer.runtime' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)
