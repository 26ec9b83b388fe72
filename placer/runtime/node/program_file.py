"""Load a node program from its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from placer.errors import BuildError
from placer.plan.folder import read_file
from placer.plan.hooks import HOOKS
from placer.plan.modules import modules_in
from placer.plan.plan import NodePlan, Plan
from placer.runtime.node.node import Node

Hook = Callable[[Node], None]


class Hooks(NamedTuple):
    """The hooks of a program; `evaluate` and `predict` are None in a build without an
    evaluation or a prediction, `serve` on a node without tables that workers update
    without lockstep."""

    step: Hook
    evaluate: Hook | None
    predict: Hook | None
    serve: Hook | None = None


def load_program(folder: Path, plan: Plan, node: NodePlan) -> Hooks:
    """Run a node's program and return its hooks.

    Only source with the hash in the plan is run; bytecode beside it is ignored. Raises
    BuildError for a program that has changed since it was compiled, and whatever the
    program raises.
    """
    if node.program not in plan.files:
        raise BuildError(f"the plan has no hash of '{node.program}'")
    source = read_file(folder, node.program, plan.files[node.program])
    file = str((folder / node.program).absolute())
    module = ModuleType("placer_program")
    module.__file__ = file
    # Tracebacks, and the report of a failed op, refer to the file by this name.
    with modules_in(folder):  # the build has the modules that the spec calls
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
    step, *others = HOOKS
    return Hooks(getattr(module, step), *(getattr(module, n, None) for n in others))
