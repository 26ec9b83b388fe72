"""Loading a node program from its file."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from placer.errors import BuildError

Hook = Callable[[Any], None]


def load_program(file: Path, node: str) -> tuple[Hook, Hook | None]:
    """Its `step` and, where the build evaluates, its `evaluate`."""
    name = f"placer_program_{node.replace(':', '_')}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BuildError(f"'{file}' is not a Python program")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.step, getattr(module, "evaluate", None)
