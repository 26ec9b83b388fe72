"""Sparse tables of servers that apply what each worker pushes.

In a simulation a table is a dense parameter, with a row for each key of a vocabulary. Each
server has its part as a dict of rows.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placer.plan.plan import Edge, SparseTable
from placer.plan.settings.training.update_modes import GradientMode
from placer.runtime.exchange.worker_messages import MessageKind
from support.dict_table import DictTable
from support.orders.exchange import (
    Arrays,
    Group,
    Piece,
    Run,
    clipped,
    events_of,
    messages_taken,
)

Occurrences = Callable[[str, int], Mapping[int, int]]
"""How often each row of the vocabulary occurs in the rows of a worker in a step."""


@dataclass(frozen=True)
class Vocabulary:
    """The keys of a table, uint64, and which of them a worker looks up in a step."""

    keys: Sequence[int]
    occurrences: Occurrences


@dataclass
class _Answer:
    """The rows that a worker got, and how many steps of others were applied before."""

    pieces: list[Piece]
    others: int


@dataclass
class _Server:
    """A server's part of the tables of an edge, and where it is in its recorded order."""

    tables: dict[str, DictTable]
    partitions: dict[str, range]
    takes: list[str]
    applied: dict[str, int]
    drained: set[str] = field(default_factory=set)
    messages: Counter[str] = field(default_factory=Counter)
    waiting: list[tuple[float, str, int]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    answers: dict[tuple[str, int], _Answer] = field(default_factory=dict)
    swept: int = 0

    @property
    def answered(self) -> float:
        """Requests that wait for steps up to this one have an answer."""
        steps = [step for w, step in self.applied.items() if w not in self.drained]
        return min(steps, default=math.inf)

    def count_others(self, worker: str) -> int:
        return self.counts.total() - self.counts[worker]

    def has(self, table: str, key: int) -> bool:
        return self.tables[table].partition(key) in self.partitions[table]


class RowPushes:
    """The tables of one edge of gradients: the order says whose messages each server takes;
    what a worker sends, and in which order, follows from the mode.

    Attributes:
        tables: the rows at the end, by table, of each server.
    """

    def __init__(
        self, run: Run, group: Group, push: Edge, tables: Mapping[str, Vocabulary]
    ) -> None:
        self._run, self._group, self._push = run, group, push
        self._names = [name for value in push.values for name in value.tables]
        self._tables = {name: tables[name] for name in self._names}
        (ask,) = (
            edge
            for edge in run.plan.step_edges
            if edge.exchange == "ask_rows"
            and {name for value in edge.values for name in value.tables}
            == {*self._names}
            and edge.group == push.group
        )
        planned = {table.name: table for table in run.plan.sparse_tables}
        self._servers = [
            self._server(server, [planned[name] for name in self._names])
            for server in push.targets
        ]
        self._sent = {w: [*self._messages(w, ask)] for w in push.sources}
        self.staleness: list[int] = []
        self.divergence = 0.0

    def values(self, worker: str, step: int) -> list[Piece] | None:
        found = [server.answers.get((worker, step)) for server in self._servers]
        answers = [answer for answer in found if answer is not None]
        if len(answers) < len(found):
            return None
        return [piece for answer in answers for piece in answer.pieces]

    def advance(self) -> bool:
        return any(self._serve(server) for server in self._servers)

    def final(self) -> Iterator[Piece]:
        for server in self._servers:
            assert not server.takes
            for name, vocabulary in self._tables.items():
                rows = range(len(vocabulary.keys))
                yield from self._pieces(server, name, rows)

    @property
    def tables(self) -> dict[str, list[DictTable]]:
        return {n: [server.tables[n] for server in self._servers] for n in self._names}

    def _server(self, name: str, planned: Sequence[SparseTable]) -> _Server:
        seed = self._run.plan.settings.seed
        return _Server(
            {table.name: DictTable(table.settings, seed) for table in planned},
            {table.name: table.partitions_of(name) for table in planned},
            messages_taken(self._run, name, self._push),
            dict.fromkeys(self._push.sources, 0),
        )

    def _messages(
        self, worker: str, ask: Edge
    ) -> Iterator[tuple[MessageKind, int, bool]]:
        """Yield the kind and the step of each message of a worker, and whether the answer is
        used: the worker drops rows that it has requested before a drain."""
        mode, steps, asked = self._group.mode, self._run.steps, 0
        assert isinstance(mode, GradientMode)
        drains = {step for (step,) in events_of(self._run, worker, "drain", 0)}
        is_ahead = any(value.inputs for value in ask.values)
        for step in range(1, steps + 1):
            if asked < step:
                yield MessageKind.ASK, step, True
            if is_ahead and not mode.waits_for_own and step < steps:
                asked = step + 1
                yield MessageKind.ASK, asked, step not in drains
            yield MessageKind.PUSH, step, True
            if step in drains:
                yield MessageKind.DRAIN, step, True
                asked = 0

    def _serve(self, server: _Server) -> bool:
        """Handle the message that is next; return whether that was possible."""
        if not server.takes:
            return False
        worker = server.takes[0]
        kind, step, is_used = self._sent[worker][server.messages[worker]]
        if kind == MessageKind.PUSH:
            part = self._run.gradient(worker, step)
            if part is None:
                return False
            gradients, _ = clipped(self._group, part)
            if gradients is not None:
                self._apply(server, worker, step, gradients)
            server.applied[worker] = step
        elif kind == MessageKind.ASK and not is_used:
            pass
        elif kind == MessageKind.ASK:
            bound = self._group.mode.bound if self._group.mode else None
            wanted = 0 if bound is None else max(0, step - 1 - bound)
            server.waiting.append((wanted, worker, step))
        else:
            server.drained.add(worker)
            server.applied[worker] = max(step, server.applied[worker])
        server.takes.pop(0)
        server.messages[worker] += 1
        self._answer(server)
        if len(server.drained) == len(server.applied):
            server.drained.clear()
            self._forget_up_to(server, min(server.applied.values()))
        return True

    def _answer(self, server: _Server) -> None:
        """Answer the requests that have waited long enough."""
        limit = server.answered
        for wanted, worker, step in server.waiting:
            if wanted <= limit:
                pieces = [
                    piece
                    for name, vocabulary in self._tables.items()
                    for piece in self._pieces(
                        server, name, vocabulary.occurrences(worker, step)
                    )
                ]
                others = server.count_others(worker)
                server.answers[worker, step] = _Answer(pieces, others)
        server.waiting = [each for each in server.waiting if each[0] > limit]

    def _pieces(self, server: _Server, name: str, rows: Any) -> Iterator[Piece]:
        table, keys = server.tables[name], self._tables[name].keys
        for row in rows:
            if server.has(name, keys[row]):
                value = np.array(table.pull(keys[row]))
                yield name, row * value.size, value

    def _apply(
        self, server: _Server, worker: str, step: int, gradients: Arrays
    ) -> None:
        """Push the gradients of a worker to the tables of a server, and forget keys."""
        others = server.count_others(worker)
        stale = others - server.answers[worker, step].others
        self.staleness.append(stale)
        rate, mode = self._group.rate(step), self._group.mode
        assert mode is not None
        if mode.staleness_scale:
            rate /= 1 + stale
        done = {**server.applied, worker: step}
        now = min(done.values())
        for name, table in server.tables.items():
            keys = self._tables[name].keys
            occurrences = self._tables[name].occurrences(worker, step)
            scoring = table.settings.score
            weight = 0.0 if scoring is None else scoring.no_click
            batch = {
                keys[row]: (gradients[name][row], count, count * weight, 0)
                for row, count in occurrences.items()
                if server.has(name, keys[row])
            }
            workers = self._push.sources
            draw = step * len(workers) + workers.index(worker)
            table.push(batch, rate, now, draw=draw)
        self._forget_up_to(server, now)
        server.counts[worker] += 1

    def _forget_up_to(self, server: _Server, now: int) -> None:
        for table in server.tables.values():
            for swept in range(server.swept + 1, now + 1):
                table.forget(swept, 0)
        server.swept = now


def merged(parts: Sequence[DictTable]) -> dict[int, Any]:
    """Return the rows of all parts of a table."""
    rows: defaultdict[int, Any] = defaultdict()
    for part in parts:
        assert not rows.keys() & part.rows.keys()
        rows |= part.rows
    return dict(rows)
