"""Computes in which time slots of each node's step its values are alive."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from msgspec import Struct

from placer.compiler.graph.graph import Op, Value
from placer.compiler.schedule.schedule import Schedule
from placer.compiler.schedule.tasks import NodeStep, Task, split_into_tasks
from placer.compiler.schedule.units import LoweredGraph, Unit


@dataclass(frozen=True, slots=True)
class TimeSlot:
    """Units that a node runs without freeing any of their values in between.

    A slot is one run of a scheduled task, or one unit outside of the schedule.

    Attributes:
        units: the units.
        microbatch: the number of the microbatch; None for a slot that runs once a step.
        start: the start in declared FLOPs since the first task: -1 before all tasks,
            infinite after them.
    """

    units: Sequence[Unit]
    microbatch: int | None
    start: float


class Lifetime(Struct, frozen=True):
    """A value of a node that is alive from slot `first` through slot `last`."""

    op: Op
    value: Value
    first: int
    last: int


class Lifetimes:
    """The lifetimes of a step's values on each node.

    Operands and results of a jitted function are alive during the whole call. A value with
    a copy per microbatch counts for each microbatch that the schedule keeps alive. A
    microbatch's message is alive at its sender until the last receiver's task starts. At a
    receiver it is alive from one slot before its use, since messages arrive early.
    """

    def __init__(self, step: LoweredGraph, schedule: Schedule) -> None:
        self.step = step
        self.graph = step.graph
        self.schedule = schedule
        self._receive_times: dict[tuple[int, int], list[tuple[int, str]]] = {}
        """Start times of the receivers' tasks with the receivers, latest first, by edge
        and microbatch."""

    def slots_of(self, node: str) -> list[TimeSlot]:
        """Return the time slots of a node's step, in order."""
        if node not in self.schedule.tasks:
            return [
                TimeSlot((u,), None, i) for i, u in enumerate(self.step.units_on(node))
            ]
        step = self._node_steps[node]
        units_of = {task.name: task.units for task in step.tasks}
        slots = [TimeSlot((unit,), None, -1) for unit in step.before.units]
        for run in self.schedule.tasks[node]:
            slots.append(TimeSlot(units_of[run.task], run.microbatch, run.start))
        return [*slots, *(TimeSlot((unit,), None, inf) for unit in step.after.units)]

    def lifetimes_in(self, node: str, slots: Sequence[TimeSlot]) -> Iterator[Lifetime]:
        """Yield the lifetime of every value of the node's ops, except values inside a
        jitted function."""
        starts = [slot.start for slot in slots]  # ascending
        last_use: dict[tuple[str, int | None], int] = {}
        for i, slot in enumerate(slots):
            for op in _ops(slot):
                end = i
                if op.sent_edge is not None and slot.microbatch is not None:
                    # The message is alive until its last receiver starts: until the
                    # last slot of this node that starts no later.
                    until = self._last_receive(op, node, slot.microbatch)
                    end = max(i, bisect_right(starts, until) - 1)
                for name in op.operands:
                    key = name, self._microbatch_of(name, slot)
                    last_use[key] = max(last_use.get(key, 0), end)
        counted: set[str] = set()
        for i, slot in enumerate(slots):
            for unit in slot.units:
                outputs = set(unit.outputs)
                for op in unit.ops:
                    received = op.received_edge is not None
                    ahead = received and slot.microbatch is not None
                    accumulates = op.structure.reduces in ("P", "R")
                    for value in op.results:
                        if unit.computed and value.name not in outputs:
                            continue
                        # Alive from the first microbatch on, and counted once.
                        if accumulates and value.name in counted:
                            continue
                        counted.add(value.name)
                        key = value.name, self._microbatch_of(value.name, slot)
                        last = last_use.get(key, i)
                        yield Lifetime(op, value, max(0, i - ahead), max(i, last))

    @cached_property
    def _node_steps(self) -> Mapping[str, NodeStep]:
        first = self.step.node_classes.representative
        of_class = {
            node: split_into_tasks(self.graph, self.step.units_on(node))
            for node in dict.fromkeys(map(first, self.schedule.tasks))
        }
        return {node: of_class[first(node)] for node in self.schedule.tasks}

    @cached_property
    def _receivers(self) -> Mapping[int, Sequence[tuple[str, Task]]]:
        """The nodes that receive each edge's message, with the receiving task."""
        receivers: dict[int, list[tuple[str, Task]]] = {}
        for node, step in self._node_steps.items():
            for task in step.tasks:
                for op in task.ops:
                    if (edge := op.received_edge) is not None:
                        receivers.setdefault(edge, []).append((node, task))
        return receivers

    def _last_receive(self, send: Op, node: str, microbatch: int) -> float:
        """Return when the last other node starts on a microbatch's message, else -1."""
        key = send.attrs["edge"], microbatch
        if key not in self._receive_times:
            times = [
                (self._starts[other, task.name, microbatch], other)
                for other, task in self._receivers.get(key[0], ())
            ]
            self._receive_times[key] = sorted(times, reverse=True)
        return next((t for t, other in self._receive_times[key] if other != node), -1)

    @cached_property
    def _starts(self) -> Mapping[tuple[str, str, int | None], int]:
        """The start of each scheduled task by node, task and microbatch."""
        return {
            (node, run.task, run.microbatch): run.start
            for node, runs in self.schedule.tasks.items()
            for run in runs
        }

    def _microbatch_of(self, name: str, slot: TimeSlot) -> int | None:
        """Return the slot's microbatch, or None for a value computed once a step."""
        if self.graph.values[name].microbatch_layout is None:
            return None
        return slot.microbatch


def _ops(slot: TimeSlot) -> Iterator[Op]:
    return (op for unit in slot.units for op in unit.ops)
