"""Splits a node's step with microbatches into tasks.

A schedule orders the tasks. Most run once per microbatch; the units before and after the
tasks run once a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from placer.compiler.graph.fresh_names import unique_name
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.schedule.units import Unit, purpose_of


@dataclass(slots=True)
class Task:
    """Consecutive units of a node at one level.

    Attributes:
        repeated: whether the task runs once per microbatch instead of once a step.
        level: the level.
        units: the units.
        totals: the sums or joins over microbatches that this task uses first.
        name: the name, such as `forward`.
    """

    repeated: bool
    level: int = 0
    units: list[Unit] = field(default_factory=list)
    totals: list[Op] = field(default_factory=list)
    name: str = ""

    @property
    def ops(self) -> Iterator[Op]:
        """The ops of all units, in order."""
        return (op for unit in self.units for op in unit.ops)


@dataclass(frozen=True, slots=True)
class NodeStep:
    """A node's step: the scheduled tasks, and the units before and after them."""

    before: Task
    tasks: tuple[Task, ...]
    after: Task


def split_into_tasks(graph: Graph, units: Sequence[Unit]) -> NodeStep:
    """Split a node's units into tasks, and name the scheduled tasks.

    Tasks are named by their purpose, such as `forward`; the second such task is
    `forward_2`.

    Args:
        graph: the graph after the last pass.
        units: the units of one node.
    """
    sequence = _add_totals(graph, _split_by_level(graph, units))
    repeated = [i for i, task in enumerate(sequence) if task.repeated]
    if not repeated:
        return NodeStep(_join(sequence), (), Task(repeated=False))
    first, last = repeated[0], repeated[-1] + 1
    tasks = tuple(sequence[first:last])
    used_names: set[str] = set()
    for task in tasks:
        task.name = unique_name(_purpose_of(task), used_names, "_", 2)
    return NodeStep(_join(sequence[:first]), tasks, _join(sequence[last:]))


def _split_by_level(graph: Graph, units: Sequence[Unit]) -> list[Task]:
    tasks: list[Task] = []
    for unit in units:
        op = unit.ops[0]
        repeated = graph.is_repeated(op)
        level = op.attrs.get("segment", 0)
        last = tasks[-1] if tasks else None
        if last is None or (last.repeated, last.level) != (repeated, level):
            tasks.append(Task(repeated, level))
        tasks[-1].units.append(unit)
    return tasks


def _add_totals(graph: Graph, sequence: Sequence[Task]) -> list[Task]:
    """Add to each task the totals over microbatches that it uses first."""
    # A total is complete after the last microbatch. If a repeated task uses a total, a
    # separate task that runs once is inserted before it.
    pending: dict[str, Op] = {}
    tasks: list[Task] = []
    for task in sequence:
        needed = dict.fromkeys(name for op in task.ops for name in op.operands)
        totals = [pending.pop(name) for name in needed if name in pending]
        if task.repeated and totals:
            tasks.append(Task(repeated=False, totals=totals))
        else:
            task.totals = totals
        pending.update((op.name, op) for op in task.ops if op.structure.reduces)
        tasks.append(task)
    return tasks


def _join(tasks: Sequence[Task]) -> Task:
    """Join tasks that run once a step."""
    joined = Task(repeated=False)
    for task in tasks:
        joined.units += task.units
        joined.totals += task.totals
    return joined


def _purpose_of(task: Task) -> str:
    computed = [op for unit in task.units if unit.computed for op in unit.ops]
    if not computed:
        return "exchange" if task.units else "totals"
    return purpose_of(computed, "step")
