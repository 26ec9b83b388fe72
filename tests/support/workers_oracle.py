"""Workers that update by themselves as a simulation in one process: it follows a recorded
order."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placer.build.plan import Edge, Plan
from placer.config.update_modes import Async
from placer.runtime.program.worker_messages import MessageKind
from support.order_oracle import RATE, Arrays, Gradient, Rule


@dataclass
class _Computed:
    """The gradients of a step; None if the worker had no row. `seen` are the steps of other
    workers that the parameters had."""

    arrays: Arrays | None
    seen: int = 0


@dataclass
class _Worker:
    """A worker: its parameters, and what is left of its order."""

    params: Arrays
    events: list[list[Any]]
    slots: defaultdict[str, dict[str, Any]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    updates: int = 0
    taken: list[int] = field(default_factory=list)
    computed: list[_Computed] = field(default_factory=list)

    @property
    def drains(self) -> bool:
        return bool(self.events) and self.events[0][0] == "drain"

    def update(self, total: Arrays, rule: Rule) -> None:
        self.updates += 1
        self.params = {
            name: rule(value, total[name], self.slots[name], self.updates, RATE)
            for name, value in self.params.items()
        }

    def copy_of(self, other: _Worker) -> None:
        self.params = dict(other.params)
        self.updates = other.updates
        self.slots = defaultdict(dict)
        self.slots.update((name, dict(each)) for name, each in other.slots.items())


Arrive = Callable[["_Worker", Sequence[int] | None], Arrays | None]


def _read(folder: Path, name: str) -> list[list[Any]]:
    lines = (folder / f"{name.replace(':', '-')}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def simulate_peers(
    plan: Plan, folder: Path, initial: Arrays, gradient: Gradient, rule: Rule
) -> tuple[Arrays, float, dict[int, int]]:
    """Return the parameters at the end of a recorded run without a server, the largest
    divergence at a drain, and how many gradients had each staleness."""
    (push,) = (edge for edge in plan.step_edges if edge.exchange == "push_all")
    names = push.sources
    workers = {
        name: _Worker(dict(initial), _read(folder, name), taken=[0] * len(names))
        for name in names
    }
    applied: dict[str, dict[str, int]] = {n: dict.fromkeys(names, 0) for n in names}
    staleness: dict[int, int] = defaultdict(int)

    def take(name: str, counts: Sequence[int] | None) -> bool:
        """Apply gradients up to these numbers of each worker, or all; return whether they
        are all computed."""
        worker = workers[name]
        if counts is None:
            counts = [len(workers[each].computed) for each in names]
        if any(
            len(workers[n].computed) < c for n, c in zip(names, counts, strict=True)
        ):
            return False
        parts: list[tuple[str, _Computed]] = []
        for i, (source, count) in enumerate(zip(names, counts, strict=True)):
            new = workers[source].computed[worker.taken[i] : count]
            parts += [(source, each) for each in new if each.arrays is not None]
            worker.taken[i] = count
        own = applied[name]
        for source, each in parts:
            others = sum(own.values()) - own[source]
            staleness[max(0, others - each.seen)] += 1
        for source, _ in parts:
            own[source] += 1
        if parts:
            worker.update(_sum([each.arrays for _, each in parts]), rule)
        return True

    def advance(name: str) -> bool:
        worker = workers[name]
        if not worker.events or worker.drains:
            return False
        _, _, step, counts = worker.events[0]
        if not take(name, counts):
            return False
        worker.events.pop(0)
        arrays, share = gradient(worker.params, name, step)
        seen = sum(applied[name].values()) - applied[name][name]
        worker.computed.append(_Computed(arrays if share else None, seen))
        return True

    divergence = _run(workers, advance, lambda name: take(name, None))
    return workers[names[0]].params, divergence, dict(staleness)


def _run(
    workers: Mapping[str, _Worker],
    advance: Callable[[str], bool],
    take_rest: Callable[[str], object],
) -> float:
    """Run all workers to the end of their orders; return the largest divergence."""
    divergence = 0.0
    while any(worker.events for worker in workers.values()):
        moved = [advance(name) for name in workers]
        if any(moved):
            continue
        assert all(worker.drains for worker in workers.values())
        for name, worker in workers.items():
            worker.events.pop(0)
            take_rest(name)
        first, *others = workers.values()
        for other in others:
            for name, value in first.params.items():
                distance = np.abs(value - other.params[name]).max()
                divergence = max(divergence, float(distance))
            other.copy_of(first)
    return divergence


@dataclass
class _Server:
    """A server that sums its ranges of the gradients."""

    takes: list[str]
    ranges: Mapping[str, tuple[int, int]]
    applied: dict[str, int]
    sums: dict[str, Arrays | None]
    messages: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    waiting: list[tuple[float, str]] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)
    answers: dict[str, list[Arrays | None]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def add(self, part: Arrays) -> None:
        for worker, total in self.sums.items():
            own = {}
            for name, (low, high) in self.ranges.items():
                array = np.zeros(part[name].size)
                array[low:high] = part[name].reshape(-1)[low:high]
                own[name] = array.reshape(part[name].shape)
            self.sums[worker] = own if total is None else _sum([total, own])

    def answer(self, worker: str) -> None:
        self.answers[worker].append(self.sums[worker])
        self.sums[worker] = None

    def answer_waiting(self) -> None:
        limit = float("inf")
        if len(self.drained) < len(self.applied):
            limit = min(s for w, s in self.applied.items() if w not in self.drained)
        ready = [worker for wanted, worker in self.waiting if wanted <= limit]
        self.waiting = [each for each in self.waiting if each[0] > limit]
        for worker in ready:
            self.answer(worker)


def simulate_sums(
    plan: Plan,
    folder: Path,
    initial: Arrays,
    gradient: Gradient,
    rule: Rule,
    mode: Async,
) -> tuple[Arrays, float]:
    """Return the parameters at the end of a recorded run with servers that sum, and the
    largest divergence at a drain."""
    (push,) = (edge for edge in plan.step_edges if edge.exchange == "push_sum")
    names = push.sources
    orders = {name: _read(folder, name) for name in names}
    workers = {
        name: _Worker(dict(initial), [e for e in events if e[0] != "send"], taken=[0])
        for name, events in orders.items()
    }
    sends = {
        n: [e[2:] for e in events if e[0] == "send"] for n, events in orders.items()
    }
    servers = [
        _Server(
            [e[3] for e in _read(folder, server) if e[0] == "take"],
            dict(_ranges(push, part)),
            dict.fromkeys(names, 0),
            dict.fromkeys(names),
        )
        for part, server in enumerate(push.targets)
    ]

    def serve(server: _Server) -> bool:
        """Handle the next message of a server; return whether that is possible."""
        if not server.takes:
            return False
        if len(server.drained) == len(names):
            server.drained.clear()
        worker = server.takes[0]
        kind, number = sends[worker][server.messages[worker]]
        if kind == MessageKind.PUSH:
            first = server.applied[worker]
            parts = workers[worker].computed[first : first + number]
            if len(parts) < number:
                return False
            with_rows = [each.arrays for each in parts if each.arrays is not None]
            if with_rows:
                total = _sum(with_rows)
                if mode.merge == "mean":
                    total = {n: a / len(with_rows) for n, a in total.items()}
                server.add(total)
            server.applied[worker] += number
            server.answer(worker)
        elif kind == MessageKind.REQUEST:
            server.waiting.append((number, worker))
        else:
            server.drained.add(worker)
            server.waiting.append((float("inf"), worker))
        server.answer_waiting()
        server.messages[worker] += 1
        server.takes.pop(0)
        return True

    def take(name: str, count: int | None) -> bool:
        worker = workers[name]
        if count is None:
            count = len(servers[0].answers[name])
        if any(len(server.answers[name]) < count for server in servers):
            return False
        for number in range(worker.taken[0], count):
            parts = [each.answers[name][number] for each in servers]
            sums = [part for part in parts if part is not None]
            if sums:
                worker.update(_sum(sums), rule)
        worker.taken[0] = count
        return True

    def advance(name: str) -> bool:
        moved = [serve(server) for server in servers]
        worker = workers[name]
        if not worker.events or worker.drains:
            return any(moved)
        _, _, step, count = worker.events[0]
        if not take(name, count):
            return any(moved)
        worker.events.pop(0)
        arrays, share = gradient(worker.params, name, step)
        worker.computed.append(_Computed(arrays if share else None))
        return True

    divergence = _run(workers, advance, lambda name: take(name, None))
    assert not any(server.takes for server in servers)
    return workers[names[0]].params, divergence


def _ranges(push: Edge, part: int) -> Iterator[tuple[str, tuple[int, int]]]:
    for value in push.values:
        yield value.operand.partition(".grad")[0], push.ranges(value).of(part)


def _sum(parts: Sequence[Arrays]) -> Arrays:
    return {name: sum(part[name] for part in parts) for name in parts[0]}
