"""One node's step with microbatches, split into tasks.

A schedule runs the tasks, most of them once for each microbatch; the units before and
after them run once a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from placer.compiler.graph.fresh_names import unique_name
from placer.compiler.graph.graph import Graph, Op
from placer.compiler.schedule.units import Unit, purpose_of


@dataclass(slots=True)
class Task:
    """Units of a node that run one after the other, at one `level`.

    A `repeated` task runs for each microbatch, any other once a step. `totals` are the
    ops whose results, summed or joined over the microbatches, this task is the first to
    use.
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
    """A node's step: the tasks that the schedule orders, and what runs around them."""

    before: Task
    tasks: tuple[Task, ...]
    after: Task


def split_into_tasks(graph: Graph, units: Sequence[Unit]) -> NodeStep:
    """Split a node's units into tasks, and name those that the schedule orders.

    `graph` is the graph after the last pass. Tasks are named by their purpose, such as
    `forward`; a second task of that purpose is `forward_2`.
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
    """Add to each task the totals over microbatches that it is the first to use.

    A total is complete after the last microbatch. A repeated task that uses one gets a
    task of its own ahead, which runs once.
    """
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
    """Join tasks that run once a step into one."""
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
