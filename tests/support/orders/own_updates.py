"""Asynchronous groups with worker-side updates, from gradients of all workers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import GradientMode
from placer.runtime.exchange.worker_messages import MessageKind
from support.orders.exchange import (
    Arrays,
    Group,
    Piece,
    Run,
    clipped,
    events_of,
    messages_taken,
    total,
    whole,
)


@dataclass
class _Computed:
    """The gradients of a step; None if the worker had no row. `seen` are the steps of other
    workers that the parameters had."""

    arrays: Arrays | None
    step: int
    seen: int


@dataclass
class _Worker:
    """A worker: its parameters, and what is left of its order: its drains, and what it has
    taken before each step."""

    params: Arrays
    uses: list[list[Any]]
    drains: list[int]
    slots: defaultdict[str, dict[str, Any]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    updates: int = 0
    taken: list[int] = field(default_factory=list)
    drained: list[int] = field(default_factory=list)  # `taken` at the last drain
    computed: list[_Computed] = field(default_factory=list)
    at: int | None = None  # the step that it computes

    @property
    def is_draining(self) -> bool:
        done = self.computed[-1].step if self.computed else 0
        return self.at is None and bool(self.drains) and self.drains[0] == done


class OwnUpdates:
    """A group of which each worker has parameters and slots of its own.

    When all have drained, they take those of the first worker.
    """

    def __init__(self, run: Run, group: Group, push: Edge, answers: Edge) -> None:
        self._run, self._group, self._push = run, group, push
        self._workers = {
            name: _Worker(
                {each: run.initial[each] for each in group.names},
                events_of(run, name, "use", answers.id),
                [step for (step,) in events_of(run, name, "drain", 0)],
            )
            for name in push.sources
        }
        self.staleness: list[int] = []
        self.divergence = 0.0

    def values(self, worker: str, step: int) -> list[Piece] | None:
        own = self._workers[worker]
        return whole(own.params) if own.at == step else None

    def final(self) -> list[Piece]:
        assert not any(each.drains or each.uses for each in self._workers.values())
        return whole(next(iter(self._workers.values())).params)

    def advance(self) -> bool:
        moved = [self._work(name, worker) for name, worker in self._workers.items()]
        if any(moved):
            return True
        if not self._has_drained():
            return False
        self._drain()
        return True

    def _has_drained(self) -> bool:
        """Whether all has come that workers have sent before a drain of all of them."""
        return all(worker.is_draining for worker in self._workers.values())

    def _take(self, name: str, count: Any) -> bool:
        """Update a worker by what has come up to a recorded count since the last drain, or
        with None by all that has; return whether it is there."""
        raise NotImplementedError

    def _seen(self, name: str) -> int:
        """Return how many steps of other workers the parameters of a worker have."""
        return 0

    def _work(self, name: str, worker: _Worker) -> bool:
        """Begin or end the step of a worker, if that is possible; return whether it is."""
        if worker.at is not None:
            part = self._run.gradient(name, worker.at)
            if part is None:
                return False
            arrays, _ = clipped(self._group, part)
            worker.computed.append(_Computed(arrays, worker.at, self._seen(name)))
            worker.at = None
            return True
        if not worker.uses or worker.is_draining:
            return False
        step, count = worker.uses[0]
        if not self._take(name, count):
            return False
        worker.uses.pop(0)
        worker.at = step
        return True

    def _drain(self) -> None:
        for name, worker in self._workers.items():
            worker.drains.pop(0)
            self._take(name, None)
            worker.drained = [*worker.taken]
        first, *others = self._workers.values()
        for other in others:
            for name, value in first.params.items():
                distance = float(np.abs(value - other.params[name]).max())
                self.divergence = max(self.divergence, distance)
            other.params, other.updates = dict(first.params), first.updates
            other.slots = defaultdict(dict)
            other.slots |= {name: dict(each) for name, each in first.slots.items()}

    def _update(self, worker: _Worker, gradients: Arrays, newest: int) -> None:
        worker.updates += 1
        rule_of, rate = self._group.rule_of, self._group.rate(newest)
        worker.params = {
            name: rule_of(name)(
                value, gradients[name], worker.slots[name], worker.updates, rate
            )
            for name, value in worker.params.items()
        }


class Peers(OwnUpdates):
    """A group without a server: each worker gets the gradients of all."""

    def __init__(self, run: Run, group: Group, push: Edge) -> None:
        super().__init__(run, group, push, push)
        self._applied = {name: Counter[str]() for name in push.sources}
        for worker in self._workers.values():
            worker.taken = [0] * len(push.sources)
            worker.drained = [*worker.taken]

    def _take(self, name: str, count: list[int] | None) -> bool:
        worker, sources = self._workers[name], self._workers.values()
        counts = [len(each.computed) for each in sources]
        if count is not None:
            counts = [a + b for a, b in zip(worker.drained, count, strict=True)]
        if any(
            len(each.computed) < count
            for each, count in zip(sources, counts, strict=True)
        ):
            return False
        parts: list[tuple[str, _Computed]] = []
        for i, (source, each) in enumerate(self._workers.items()):
            new = each.computed[worker.taken[i] : counts[i]]
            parts += [(source, part) for part in new if part.arrays is not None]
            worker.taken[i] = counts[i]
        applied = self._applied[name]
        for source, part in parts:
            others = applied.total() - applied[source]
            self.staleness.append(max(0, others - part.seen))
        applied.update(source for source, _ in parts)
        if parts:
            gradients = total(part.arrays for _, part in parts if part.arrays)
            self._update(worker, gradients, max(part.step for _, part in parts))
        return True

    def _seen(self, name: str) -> int:
        return self._applied[name].total() - self._applied[name][name]


@dataclass
class _Sum:
    """A sum of gradients, and the newest step in it."""

    arrays: Arrays
    newest: int


@dataclass
class _Server:
    """A server that sums its ranges of the gradients, for each worker."""

    takes: list[str]
    ranges: dict[str, tuple[int, int]]
    applied: dict[str, int]
    sums: dict[str, _Sum | None]
    messages: Counter[str] = field(default_factory=Counter)
    waiting: list[tuple[float, str]] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)
    answers: defaultdict[str, list[_Sum | None]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @property
    def has_drained(self) -> bool:
        return len(self.drained) == len(self.applied)

    def add(self, part: Arrays, step: int) -> None:
        own = {}
        for name, (low, high) in self.ranges.items():
            array = np.zeros(part[name].size)
            array[low:high] = part[name].reshape(-1)[low:high]
            own[name] = array.reshape(part[name].shape)
        for worker, before in self.sums.items():
            self.sums[worker] = _added([_Sum(own, step)] + ([before] if before else []))

    def answer(self, worker: str) -> None:
        self.answers[worker].append(self.sums[worker])
        self.sums[worker] = None

    def answer_waiting(self) -> None:
        steps = [s for w, s in self.applied.items() if w not in self.drained]
        limit = min(steps, default=float("inf"))
        ready = [worker for wanted, worker in self.waiting if wanted <= limit]
        self.waiting = [each for each in self.waiting if each[0] > limit]
        for worker in ready:
            self.answer(worker)


class Sums(OwnUpdates):
    """A group whose servers sum: a worker gets the sum of the gradients of all since it has
    asked last."""

    def __init__(self, run: Run, group: Group, push: Edge, pull: Edge) -> None:
        super().__init__(run, group, push, pull)
        for worker in self._workers.values():
            worker.taken, worker.drained = [0], [0]
        self._sends = {
            name: events_of(run, name, "send", push.id) for name in push.sources
        }
        (table,) = (
            table
            for table in run.plan.node(pull.targets[0]).tables
            if table.blocks[0].gradient in {value.result for value in pull.values}
        )
        parameter_of = {block.gradient: block.parameter for block in table.blocks}
        parameters = {v.operand: parameter_of[v.result] for v in pull.values}
        self._servers = [
            _Server(
                messages_taken(run, server, push),
                {
                    parameters[value.result]: push.ranges(value).of(part)
                    for value in push.values
                },
                dict.fromkeys(push.sources, 0),
                dict.fromkeys(push.sources),
            )
            for part, server in enumerate(push.targets)
        ]

    def advance(self) -> bool:
        served = [self._serve(server) for server in self._servers]
        return super().advance() or any(served)

    def final(self) -> list[Piece]:
        assert not any(server.takes for server in self._servers)
        return super().final()

    def _has_drained(self) -> bool:
        servers = all(server.has_drained for server in self._servers)
        return servers and super()._has_drained()

    def _drain(self) -> None:
        super()._drain()
        for server in self._servers:
            server.drained.clear()

    def _serve(self, server: _Server) -> bool:
        """Handle the next message of a server; return whether that is possible."""
        if not server.takes or server.has_drained:
            return False
        worker, mode = server.takes[0], self._group.mode
        assert isinstance(mode, GradientMode)
        kind, number = self._sends[worker][server.messages[worker]]
        if kind == MessageKind.PUSH:
            first = server.applied[worker]
            parts = self._workers[worker].computed[first : first + number]
            if len(parts) < number:
                return False
            with_rows = [part.arrays for part in parts if part.arrays is not None]
            if with_rows:
                gradients = total(with_rows)
                if mode.merge == "mean":
                    gradients = {n: a / len(with_rows) for n, a in gradients.items()}
                server.add(gradients, parts[-1].step)
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

    def _take(self, name: str, count: int | None) -> bool:
        worker = self._workers[name]
        answers = [server.answers[name] for server in self._servers]
        count = len(answers[0]) if count is None else worker.drained[0] + count
        if any(len(each) < count for each in answers):
            return False
        for number in range(worker.taken[0], count):
            sums = [each[number] for each in answers]
            found = [each for each in sums if each is not None]
            if found:
                everything = _added(found)
                self._update(worker, everything.arrays, everything.newest)
        worker.taken[0] = count
        return True


def _added(sums: Iterable[_Sum]) -> _Sum:
    parts = [*sums]
    return _Sum(total(p.arrays for p in parts), max(p.newest for p in parts))
