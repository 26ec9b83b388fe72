"""The values of a microbatch that a task saves for later tasks of the node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placer.analysis.tasks import Task
from placer.analysis.units import Unit
from placer.emit.code import format_call, literal
from placer.emit.names import Names
from placer.graph.graph import MICROBATCH_REDUCTIONS


class SavedValues:
    """The values of a microbatch that a task saves for later tasks of the node.

    `names` are the program's, `tasks` those of its `step`, in order.
    """

    def __init__(self, names: Names, tasks: Sequence[Task]) -> None:
        producer: dict[str, int] = {}  # the first task that assigns each variable
        users: dict[str, list[int]] = {}  # the later tasks that use it
        for i, task in enumerate(tasks):
            for unit in task.units if task.repeated else ():
                for name in _names_used(unit):
                    variable = names.name_of(name)
                    is_earlier = producer.get(variable, i) != i
                    if is_earlier and i not in users.get(variable, ()):
                        users.setdefault(variable, []).append(i)
                for op in unit.ops:
                    for value in op.results:
                        if (
                            value.microbatch_layout is not None
                            and op.kind not in MICROBATCH_REDUCTIONS.values()
                        ):
                            producer.setdefault(names.name_of(value.name), i)
        self._saved: dict[int, list[str]] = {}
        self._loaded: dict[tuple[int, bool], list[str]] = {}
        for variable, tasks_using in users.items():
            self._saved.setdefault(producer[variable], []).append(variable)
            for user in tasks_using:
                last = user == tasks_using[-1]
                self._loaded.setdefault((user, last), []).append(variable)

    def emit_saves(self, task: int, depth: int) -> list[str]:
        """Return the statement at the end of a task that saves its values."""
        names = self._saved.get(task, [])
        arguments = [f"{name}={name}" for name in names]
        return format_call([], "node.keep", arguments, depth) if names else []

    def emit_loads(self, task: int, depth: int) -> list[str]:
        """Return the statements at the start of a task that load saved values.

        The last task that uses a value also removes it: `node.taken`, not `node.kept`.
        """
        lines: list[str] = []
        for verb, last in (("kept", False), ("taken", True)):
            names = self._loaded.get((task, last))
            if names:
                targets = [f"({names[0]},)"] if len(names) == 1 else names
                named = [literal(name) for name in names]
                lines += format_call(targets, f"node.{verb}", named, depth)
        return lines


def _names_used(unit: Unit) -> Iterable[str]:
    """The values that must exist before the unit runs.

    For a jitted function those are its inputs: not the operands that it computes.
    """
    if unit.computed:
        return unit.inputs
    return (name for op in unit.ops for name in op.operands)
