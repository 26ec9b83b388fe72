"""Predicts the time of a step: simulates the items of all nodes, which share cores and links.

The simulation runs 16 steps twice, one after another, and times the second round. No node
waits for the others between steps, as in a run. Each step takes other quantiles of the costs,
in a fixed order, so that a stage also waits for the slower steps of another stage. All
numbers are integers, so the result is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from placer.compiler.placing.costs import STEPS
from placer.compiler.placing.step_items import KINDS, Item, Kind, Route, StepItems
from placer.errors import PlacerError
from placer.place.node_kinds import NodeId

_OF_STEP, _OF_ITEM, _OF_NODE = 7, 5, 3
"""The strides through the quantiles. Each is coprime with `STEPS`, so that every item takes
each quantile once in a round."""
_LAST = 2 * STEPS
"""The number of simulated steps."""


@dataclass(frozen=True, slots=True)
class Links:
    """The links between processes.

    Attributes:
        bytes_per_second: the bandwidth in each direction between two processes; None if
            messages take no longer than their ends do, as in shared memory.
        latency: the nanoseconds from the end of a send until the message has arrived.
    """

    bytes_per_second: int | None = None
    latency: int = 20_000


@dataclass(frozen=True, slots=True)
class StepTime:
    """The predicted time of a step.

    Attributes:
        nanoseconds: the mean time of a step.
        busy: the mean CPU time of each node in a step, by kind, in nanoseconds.
        link_bytes: the bytes that cross in a step from one process to another.
    """

    nanoseconds: int
    busy: Mapping[str, Mapping[Kind, int]]
    link_bytes: Mapping[tuple[str, str], int]

    def cpu(self, node: str) -> int:
        """Return the CPU time of a node in a step, in nanoseconds."""
        return sum(self.busy[node].values())


def simulate(
    step: StepItems, *, cores: int | None = None, links: Links | None = None
) -> StepTime:
    """Return the predicted time of a step.

    Args:
        step: the items of each node.
        cores: the cores that all processes share; None if each has its own.
        links: the links between processes; by default those of shared memory.

    Raises:
        PlacerError: nodes would wait for each other forever.

    Example:
        step_time = simulate(step_items(step, schedule, costs), cores=2)
    """
    simulation = _Simulation(
        step.items, cores or len(step.items) or 1, links or Links()
    )
    total = simulation.run()
    busy = {
        node: {
            kind: sum(sum(item.busy.get(kind, ())) for item in items) // STEPS
            for kind in KINDS
        }
        for node, items in step.items.items()
    }
    link_bytes: dict[tuple[str, str], int] = {}
    for items in step.items.values():
        for item in items:
            for (_, _, source, target), nbytes in item.sends:
                if nbytes:
                    link = NodeId(source).process, NodeId(target).process
                    link_bytes[link] = link_bytes.get(link, 0) + nbytes
    return StepTime(total, busy, dict(sorted(link_bytes.items())))


class _Stretch(NamedTuple):
    """Items that a node runs without waiting: after `waits`, and before `sends`."""

    work: int
    waits: tuple[Route, ...]
    sends: tuple[tuple[Route, int], ...]


@dataclass(slots=True)
class _Node:
    """A node in the simulation.

    Attributes:
        stretches: what it still has to do, with the number of the step.
        step: the step of the current stretch.
        left: the work that is left of the current stretch.
        waits: the messages that have not arrived; the node runs when it is empty.
    """

    name: str
    stretches: Iterator[tuple[int, _Stretch]]
    step: int = 0
    current: _Stretch | None = None
    left: int = 0
    waits: set[tuple[int, Route]] = field(default_factory=set)


@dataclass(slots=True)
class _Simulation:
    items: Mapping[str, Sequence[Item]]
    cores: int
    links: Links
    now: int = 0
    arrivals: list[tuple[int, int, tuple[int, Route]]] = field(default_factory=list)
    """A heap of messages on their way: when they arrive, and their number."""
    arrived: set[tuple[int, Route]] = field(default_factory=set)
    free: dict[tuple[str, str], int] = field(default_factory=dict)
    """When each link has sent its last message."""
    waiting: dict[tuple[int, Route], list[_Node]] = field(default_factory=dict)
    ends: list[int] = field(default_factory=lambda: [0] * _LAST)
    """When the last node has ended each step."""
    sent: int = 0

    def run(self) -> int:
        """Simulate all steps; return the mean nanoseconds of a step in the second round."""
        running: list[_Node] = []
        blocked = 0
        for number, (name, items) in enumerate(self.items.items()):
            node = _Node(name, _stretches(items, number))
            if not self._next(node):
                continue
            if node.waits:
                blocked += 1
            else:
                running.append(node)
        while running or self.arrivals:
            ended = self._advance(running)
            running = [node for node in running if node.left]
            while self.arrivals and self.arrivals[0][0] <= self.now:
                _, _, message = heappop(self.arrivals)
                self.arrived.add(message)
                for node in self.waiting.pop(message, ()):
                    node.waits.discard(message)
                    if not node.waits:
                        blocked -= 1
                        (running if node.left else ended).append(node)
            while ended:
                node = ended.pop()
                self._send(node)
                if self._next(node):
                    if node.waits:
                        blocked += 1
                    else:
                        (running if node.left else ended).append(node)
        if blocked:
            raise PlacerError("the nodes of this placement wait for each other")
        return (self.ends[-1] - self.ends[STEPS - 1]) // STEPS

    def _advance(self, running: Sequence[_Node]) -> list[_Node]:
        """Pass time until a node ends its stretch, or a message arrives.

        Returns the nodes that have ended. If more nodes run than there are cores, all
        share them evenly.
        """
        count = max(len(running), self.cores)
        until = [-(-node.left * count // self.cores) for node in running]
        if self.arrivals:
            until.append(max(0, self.arrivals[0][0] - self.now))
        passed = min(until)
        self.now += passed
        done = passed * self.cores // count
        ended = []
        for node, needed in zip(running, until, strict=False):
            node.left = 0 if needed <= passed else max(1, node.left - done)
            if not node.left:
                ended.append(node)
        return ended

    def _next(self, node: _Node) -> bool:
        """Begin the next stretch of a node; return False after the last."""
        following = next(node.stretches, None)
        if following is None:
            return False
        node.step, node.current = following
        node.left = node.current.work
        for route in node.current.waits:
            message = node.step, route
            if message in self.arrived:
                self.arrived.discard(message)
            else:
                node.waits.add(message)
                self.waiting.setdefault(message, []).append(node)
        return True

    def _send(self, node: _Node) -> None:
        """Send the messages at the end of a stretch, and note the end of the step."""
        assert node.current is not None
        self.ends[node.step] = max(self.ends[node.step], self.now)
        for route, nbytes in node.current.sends:
            _, _, source, target = route
            at, link = self.now, (source, target)
            if nbytes and self.links.bytes_per_second is not None:
                at = max(at, self.free.get(link, 0))
                at += nbytes * 1_000_000_000 // self.links.bytes_per_second
                self.free[link] = at
            if nbytes:
                at += self.links.latency
            self.sent += 1
            heappush(self.arrivals, (at, self.sent, (node.step, route)))


def _stretches(items: Sequence[Item], number: int) -> Iterator[tuple[int, _Stretch]]:
    """Yield the stretches of all steps of a node, with the number of the step."""
    # The sums over kinds are the same in every step.
    totals = [
        [sum(times) for times in zip(*i.busy.values(), strict=True)] for i in items
    ]
    for step in range(_LAST):
        work = 0
        waits: tuple[Route, ...] = ()
        first = step * _OF_STEP + number * _OF_NODE
        for i, (item, total) in enumerate(zip(items, totals, strict=True)):
            if item.waits:
                yield step, _Stretch(work, waits, ())
                work, waits = 0, item.waits
            work += total[(first + i * _OF_ITEM) % STEPS]
            if item.sends:
                yield step, _Stretch(work, waits, item.sends)
                work, waits = 0, ()
        yield step, _Stretch(work, waits, ())
