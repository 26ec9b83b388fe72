"""What each node runs in a step, in order, and from when to when its values live."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from placer.analysis.schedule import Schedule
from placer.analysis.tasks import Block, Blocks, blocks
from placer.analysis.units import Phase, Unit
from placer.graph.graph import Op, Value


@dataclass(frozen=True, slots=True)
class Run:
    """Units that a node runs before it lets anything go, for one microbatch or once a
    step; `begin` is when, in declared FLOPs since the microbatches began."""

    units: Sequence[Unit]
    microbatch: int | None
    begin: float


@dataclass(frozen=True, slots=True)
class Life:
    """A value of a node, from its run `born` to its run `dies`, by their numbers."""

    op: Op
    value: Value
    born: int
    dies: int


class Lifetimes:
    """Of the values of a step, on each node.

    What a jitted function takes and gives lives as long as its call. What is made for
    each microbatch lives as often as the schedule has it alive; what is sent for one
    lives until the turn in which it is taken, and what comes in is there a turn ahead.
    """

    def __init__(self, step: Phase, schedule: Schedule) -> None:
        self.step = step
        self.graph = step.graph
        self.schedule = schedule
        self._takers: dict[tuple[int, int], list[tuple[int, str]]] = {}
        """Who takes a message of a microbatch, and when, the last first."""

    def runs(self, node: str) -> list[Run]:
        if node not in self.schedule.turns:
            return [Run((u,), None, i) for i, u in enumerate(self.step.units(node))]
        step = self._blocks[node]
        among = {block.name: block.units for block in step.among}
        found = [Run((unit,), None, -1) for unit in step.before.units]
        for turn in self.schedule.turns[node]:
            found.append(Run(among[turn.block], turn.microbatch, turn.begin))
        return [*found, *(Run((unit,), None, inf) for unit in step.after.units)]

    def of(self, node: str, runs: Sequence[Run]) -> Iterator[Life]:
        """The lives of what the node's functions give, and of all else that it makes."""
        begins = [run.begin for run in runs]  # in order
        last: dict[tuple[str, int | None], int] = {}
        for i, run in enumerate(runs):
            for op in _ops(run):
                end = i
                if op.kind == "send" and run.microbatch is not None:
                    until = self._taken(op, node, run.microbatch)
                    end = max(i, bisect_right(begins, until) - 1)
                for name in op.operands:
                    key = name, self._number(name, run)
                    last[key] = max(last.get(key, 0), end)
        sums: set[str] = set()
        for i, run in enumerate(runs):
            for unit in run.units:
                outputs = set(unit.outputs)
                for op in unit.ops:
                    ahead = op.kind == "listen_and_serv" and run.microbatch is not None
                    for value in op.results:
                        if unit.computed and value.name not in outputs:
                            continue
                        if op.kind in _IN_ONE_PLACE and value.name in sums:
                            continue
                        sums.add(value.name)
                        dies = last.get((value.name, self._number(value.name, run)), i)
                        yield Life(op, value, max(0, i - ahead), max(i, dies))

    @cached_property
    def _blocks(self) -> Mapping[str, Blocks]:
        first = self.step.alike.first
        of_class = {
            node: blocks(self.graph, self.step.units(node))
            for node in dict.fromkeys(map(first, self.schedule.turns))
        }
        return {node: of_class[first(node)] for node in self.schedule.turns}

    @cached_property
    def _listening(self) -> Mapping[int, Sequence[tuple[str, Block]]]:
        """Which nodes take an edge's message, and in which block."""
        found: dict[int, list[tuple[str, Block]]] = {}
        for node, step in self._blocks.items():
            for block in step.among:
                for op in block.ops:
                    if op.kind == "listen_and_serv":
                        found.setdefault(op.attrs["edge"], []).append((node, block))
        return found

    def _taken(self, send: Op, node: str, microbatch: int) -> float:
        """When the last of the others takes a microbatch's message."""
        key = send.attrs["edge"], microbatch
        if key not in self._takers:
            found = [
                (self._begin[other, block.name, microbatch], other)
                for other, block in self._listening.get(key[0], ())
            ]
            self._takers[key] = sorted(found, reverse=True)
        return next((at for at, other in self._takers[key] if other != node), -1)

    @cached_property
    def _begin(self) -> Mapping[tuple[str, str, int | None], int]:
        return {
            (node, turn.block, turn.microbatch): turn.begin
            for node, turns in self.schedule.turns.items()
            for turn in turns
        }

    def _number(self, name: str, run: Run) -> int | None:
        return None if self.graph.values[name].over is None else run.microbatch


_IN_ONE_PLACE = frozenset({"sum_microbatches", "one_microbatch"})


def _ops(run: Run) -> Iterator[Op]:
    return (op for unit in run.units for op in unit.ops)
