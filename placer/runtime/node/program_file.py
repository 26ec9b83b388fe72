"""Loads a node program from its file."""

from __future__ import annotations

import threading
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
    """The hooks of a program.

    Attributes:
        step: runs a training step.
        evaluate: runs an evaluation; None in a build without one.
        predict: runs a prediction; None in a build without outputs.
        serve: handles messages for asynchronous tables; None on a node without such tables.
    """

    step: Hook
    evaluate: Hook | None
    predict: Hook | None
    serve: Hook | None = None


class Programs:
    """The programs of a build that the threads of this process run.

    Each program is loaded once. Threads share its functions, so JAX compiles them once.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self._loaded: dict[str, Hooks] = {}
        self._lock = threading.Lock()

    def load(self, node: NodePlan) -> Hooks:
        """Return the hooks of a node; raises the same errors as `load_program`."""
        with self._lock:
            if node.program not in self._loaded:
                hooks = load_program(self._folder, self._plan, node)
                self._loaded[node.program] = hooks
            return self._loaded[node.program]


def load_program(folder: Path, plan: Plan, node: NodePlan) -> Hooks:
    """Run a node's program and return its hooks.

    Only source code with the hash in the plan is run; bytecode files are ignored.

    Raises:
        BuildError: for a program that has changed since it was compiled.
        Exception: any exception of the program.
    """
    if node.program not in plan.files:
        raise BuildError(f"the plan has no hash for '{node.program}'")
    source = read_file(folder, node.program, plan.files[node.program])
    file = str((folder / node.program).absolute())
    module = ModuleType("placer_program")
    module.__file__ = file
    # Tracebacks, and the report of a failed op, show the file under this name.
    with modules_in(folder):  # the build folder has copies of the spec's modules
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)
    step, *others = HOOKS
    return Hooks(getattr(module, step), *(getattr(module, n, None) for n in others))
