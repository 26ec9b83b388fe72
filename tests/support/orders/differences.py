"""Groups whose workers train values of their own, and exchange differences with servers:
`update: geo`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np

from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import Geo
from support.orders.exchange import (
    Arrays,
    Group,
    Piece,
    Run,
    clipped,
    events_of,
    messages_taken,
    whole,
)

T = TypeVar("T")


@dataclass(frozen=True)
class _Difference:
    """What a worker sends after a step: the difference of `steps` steps."""

    step: int
    steps: int
    oldest: int
    arrays: list[np.ndarray]


@dataclass
class _Server:
    """A table of a server: its blocks, and what it has answered."""

    push: Edge
    group: Group
    blocks: list[tuple[str, int, int]]
    values: list[np.ndarray]
    takes: list[str]
    slots: list[dict[str, Any]]
    version: int = 0  # since the last drain
    updates: int = 0
    drained: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    others: dict[tuple[str, int], int] = field(default_factory=dict)
    messages: defaultdict[str, list[_Difference | None]] = field(
        default_factory=lambda: defaultdict(list)
    )
    taken: Counter[str] = field(default_factory=Counter)
    answers: dict[tuple[str, int], tuple[int, list[np.ndarray]]] = field(
        default_factory=dict
    )
    round: dict[str, tuple[int, _Difference]] = field(default_factory=dict)
    staleness: list[int] = field(default_factory=list)

    def serve(self) -> bool:
        """Handle what is next in the recorded order; return whether that was there."""
        if not self.takes:
            return False
        worker = self.takes[0]
        number = self.taken[worker]
        if number >= len(self.messages[worker]):
            return False
        self.takes.pop(0)
        self.taken[worker] += 1
        sent = self.messages[worker][number]
        if sent is None:  # it drains
            self.drained += 1
            if self.drained % len(self.push.sources) == 0:
                self.version = 0
                self.steps.clear()
                self.others.clear()
            return True
        if self.group.outer is not None:
            self.round[worker] = number, sent
            if len(self.round) == len(self.push.sources):
                self._end_round(sent.step)
            return True
        others = self.steps.total() - self.steps[worker]
        self.staleness.append(others - self.others.get((worker, sent.oldest), 0))
        self.steps[worker] += sent.steps
        self.values = [v - d for v, d in zip(self.values, sent.arrays, strict=True)]
        self.version += 1
        self.others[worker, self.version] = self.steps.total() - self.steps[worker]
        self.answers[worker, number] = self.version, self.values
        return True

    def _end_round(self, step: int) -> None:
        sent = [self.round[worker][1].arrays for worker in self.push.sources]
        self.version += 1
        self.updates += 1
        rate = self.group.outer_rate(step)
        assert self.group.outer is not None
        self.values = [
            self.group.outer(value, sum(deltas) / len(sent), slots, self.updates, rate)
            for value, slots, deltas in zip(
                self.values, self.slots, zip(*sent, strict=True), strict=True
            )
        ]
        for worker in self.push.sources:
            self.answers[worker, self.round[worker][0]] = self.version, self.values
        self.round.clear()


@dataclass
class _End:
    """A worker's end of a server: the old values, and what it has sent."""

    server: _Server
    old: list[np.ndarray]
    uses: list[list[int]]
    open: bool = False
    pushed: int = 0
    version: int = 0
    oldest: int = 0


class Differences:
    """A group with `update: geo`.

    Attributes:
        local: each worker's own values.
    """

    def __init__(self, run: Run, group: Group) -> None:
        assert isinstance(group.mode, Geo)
        self._run, self._group, self._mode = run, group, group.mode
        self._servers = [
            self._server(push)
            for push in run.plan.step_edges
            if push.exchange == "push_delta"
            and self._table(push).blocks[0].parameter in group.names
        ]
        workers = self._servers[0].push.sources
        start = {name: run.initial[name] for name in group.names}
        self.local: dict[str, Arrays] = {
            worker: {name: array.copy() for name, array in start.items()}
            for worker in workers
        }
        self._at: dict[str, int] = {}  # the step that each worker is in
        self._waits = 0  # those that have ended
        self._working = [self._work(worker) for worker in workers]
        self.divergence = 0.0

    @property
    def staleness(self) -> list[int]:
        return [each for server in self._servers for each in server.staleness]

    def values(self, worker: str, step: int) -> list[Piece] | None:
        return whole(self.local[worker]) if self._at.get(worker) == step else None

    def advance(self) -> bool:
        before = self._waits
        self._working = [each for each in self._working if next(each, True) is None]
        return any(server.serve() for server in self._servers) or self._waits > before

    def final(self) -> list[Piece]:
        assert not self._working
        assert not any(server.takes for server in self._servers)
        return [
            (name, low, value)
            for server in self._servers
            for (name, low, _), value in zip(server.blocks, server.values, strict=True)
        ]

    def _table(self, push: Edge) -> Any:
        (server,) = push.targets
        gradients = {value.result for value in push.values}
        return next(
            table
            for table in self._run.plan.node(server).tables
            if table.blocks[0].gradient in gradients
        )

    def _server(self, push: Edge) -> _Server:
        blocks = [(b.parameter, b.start, b.stop) for b in self._table(push).blocks]
        initial = self._run.initial
        values = [initial[p].reshape(-1)[low:high] for p, low, high in blocks]
        takes = messages_taken(self._run, push.targets[0], push)
        slots: list[dict[str, Any]] = [{} for _ in blocks]
        return _Server(push, self._group, blocks, values, takes, slots)

    def _wait(self, get: Callable[[], T | None]) -> Generator[None, None, T]:
        """Return what `get` returns, when that is there."""
        while (found := get()) is None:
            yield
        self._waits += 1
        return found

    def _work(self, worker: str) -> Iterator[None]:
        """Run the steps of a worker; yield while it waits."""
        pulls = {
            edge.sources: edge.id
            for edge in self._run.plan.step_edges
            if edge.exchange == "pull" and edge.group == self._servers[0].push.group
        }
        ends = [
            _End(
                server,
                [value.copy() for value in server.values],
                events_of(self._run, worker, "use", pulls[server.push.targets]),
            )
            for server in self._servers
        ]
        drains = [step for (step,) in events_of(self._run, worker, "drain", 0)]
        slots: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        last, step, updates = drains[-1], 0, 0
        is_synchronous = self._group.outer is not None
        while step < last:
            step += 1
            for end in ends:
                is_recorded = bool(end.uses) and end.uses[0][0] == step
                if end.open and (is_synchronous or is_recorded):
                    yield from self._merge(worker, end)
                    assert is_synchronous or end.uses.pop(0)[1] == end.version
                if step == end.pushed + 1:
                    end.oldest = end.version
            self._at[worker] = step
            part = yield from self._wait(partial(self._run.gradient, worker, step))
            gradients, share = clipped(self._group, part)
            if gradients is not None:
                updates += 1
                for name, value in self.local[worker].items():
                    rule, rate = self._group.rule_of(name), self._group.rate(step)
                    estimate = gradients[name] / share
                    new = rule(value, estimate, slots[name], updates, rate)
                    self.local[worker][name] = np.array(new)
            for end in ends:
                if step % self._mode.every == 0:
                    yield from self._push(worker, end, step)
            while drains and drains[0] == step:
                drains.pop(0)
                for end in ends:
                    if step > end.pushed and (step == last or not is_synchronous):
                        yield from self._push(worker, end, step)
                    if end.open:
                        yield from self._merge(worker, end)
                    end.server.messages[worker].append(None)
                    end.version = end.oldest = 0

    def _merge(self, worker: str, end: _End) -> Iterator[None]:
        key = worker, len(end.server.messages[worker]) - 1
        answer = yield from self._wait(lambda: end.server.answers.get(key))
        end.version, values = answer
        for i, (name, low, high) in enumerate(end.server.blocks):
            part = self.local[worker][name].reshape(-1)[low:high]
            moved = part + (values[i] - end.old[i])
            part[...] = values[i] if self._group.outer is not None else moved
            end.old[i] = values[i].copy()
        end.open = False

    def _push(self, worker: str, end: _End, step: int) -> Iterator[None]:
        if end.open:
            yield from self._merge(worker, end)
        is_mean = self._mode.scale == "mean" and self._group.outer is None
        divisor = len(end.server.push.sources) if is_mean else 1
        sent = []
        for i, (name, low, high) in enumerate(end.server.blocks):
            part = self.local[worker][name].reshape(-1)[low:high]
            delta = (end.old[i] - part) / divisor
            delta = delta.astype(self._mode.dtype or delta.dtype).astype(delta.dtype)
            end.old[i] = end.old[i] - delta
            sent.append(delta)
        steps = step - end.pushed
        message = _Difference(step, steps, end.oldest, sent)
        end.server.messages[worker].append(message)
        end.pushed, end.open = step, True
