"""Loading a node program from its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from placer.build.folder import read_file
from placer.build.modules import modules_of
from placer.build.plan import Node, Plan
from placer.errors import BuildError

Hook = Callable[[Any], None]


Hooks = tuple[Hook, Hook | None]
"""A program's `step` and, where the build evaluates, its `evaluate`."""


def load_program(folder: Path, plan: Plan, node: Node) -> Hooks:
    """The hooks of the program that the node runs.

    What runs is the source that has the plan's hash, and no bytecode that lies beside
    it. Raises BuildError for a program that is not as it was compiled, and what the
    program raises.
    """
    if node.program not in plan.files:
        raise BuildError(f"the plan has no hash of '{node.program}'")
    source = read_file(folder, node.program, plan.files[node.program])
    file = str((folder / node.program).absolute())
    module = ModuleType("placer_program")
    module.__file__ = file
    # The file's name is what tracebacks, and the report of a failed op, go by.
    with modules_of(folder):  # what the spec calls stands in the build
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
    return module.step, getattr(module, "evaluate", None)
