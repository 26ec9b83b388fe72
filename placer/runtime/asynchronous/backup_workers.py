"""Backup workers: a step uses the gradients of the fastest workers only.

Source: Chen et al., "Revisiting distributed synchronous SGD", 2016.

A worker reports to each server in messages on the edge COMPUTED, numbered from 1. The server
answers each message on NEWEST with the same number, except messages of kind DRAIN. Every
message is an int64 array:

    COMPUTED  kind and step:
                PUSH     the worker has sent its gradients of a step
                REQUEST  the worker waits for the parameters of this step or a later one
                DRAIN    the step was the last one before a drain
    NEWEST    newest step; whether the step of the last push has used its gradients;
              whether the parameters of the newest step follow, on the edges `offer`
    FIRST     from the first server to the other servers: the numbers of the workers whose
              gradients a step uses, in the order of the workers

Between two steps, the answer names the next step and has no parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from placer.channel.interface import Array, Channel, Key
from placer.errors import RunError
from placer.plan.plan import Edge
from placer.runtime.asynchronous.recorded_order import ALL_EDGES, JOIN, TAKEN, Order
from placer.runtime.asynchronous.step_workers import StepWorkers
from placer.runtime.control.barrier import COMPUTED, FIRST, NEWEST
from placer.runtime.exchange.exchange import Exchange
from placer.runtime.exchange.nested_tuples import fill_tree, leaves
from placer.tables.protocol import ProgramTable


class Kind(IntEnum):
    """The kind of a worker's message to a server."""

    PUSH = 1
    REQUEST = 2
    DRAIN = 3


@dataclass(slots=True)
class _Peer:
    """The state of a worker, as its server knows it.

    Attributes:
        received: the number of its last message.
        wanted: the step that it waits for; None if it waits for no answer.
        is_taken: whether the step of its last push has used its gradients.
    """

    received: int = 0
    wanted: int | None = None
    is_taken: bool = False


class FirstWorkers(StepWorkers):
    """A server's part: chooses the workers of each step, and sends them the parameters.

    All methods are called by the compute thread.

    Args:
        exchange: the node's side of all edges.
        sums: the edges on which this server receives gradients.
        servers: the servers with such edges; the first server decides for all.
        rows_of: maps the number of rows of a batch to the rows of each worker.
        order: records the decisions, or replays them.
    """

    has_drains = True

    def __init__(
        self,
        exchange: Exchange,
        sums: Sequence[Edge],
        servers: Sequence[str],
        rows_of: Callable[[int], Mapping[str, int]],
        order: Order,
    ) -> None:
        self._exchange, self._rows_of, self._order = exchange, rows_of, order
        self._channel, self._sums = exchange.channel, sums
        self._workers, first = sums[0].sources, sums[0].first
        assert first is not None
        self._count = first
        self._peers = {worker: _Peer() for worker in self._workers}
        self._first_server, *self._others = servers
        self._decides = self._first_server == self._channel.node
        self._step = 0
        self._rows: Mapping[str, int] = {}
        self._total = 0  # rows of the step
        self._offered: list[tuple[int, Sequence[Array]]] = []
        self._arrived: list[str] = []  # workers in order of arrival, in this step
        self._taken: tuple[str, ...] = ()
        self._drained: set[str] = set()

    def begin(self, step: int, count: int) -> None:
        self._step, self._total, self._rows = step, count, self._rows_of(count)
        self._offered, self._arrived, self._taken = [], [], ()

    def offer(self, edge: int, *values: Any) -> None:
        self._offered.append((edge, tuple(leaves(values))))

    def sum_of_first(self, edge: int, kind: type[Any] | None = None) -> Any:
        if not self._taken:
            self._take()
        key = Key(edge, self._step)
        rows = sum(self._rows[worker] for worker in self._taken)
        sums = self._exchange.receive(
            key, self._total, sources=self._taken, factor=self._total / rows
        )
        return sums if kind is None else fill_tree(kind, sums)

    def drain(self, step: int) -> None:
        for worker, peer in self._peers.items():
            if peer.wanted is not None:
                self._answer(worker, self._step + 1, [])
        while not self._drained.issuperset(self._workers):
            worker, _, numbers = self._receive(self._addresses(self._workers))
            kind, pushed = self._read(worker, numbers)
            if kind == Kind.PUSH:
                self._discard(worker, pushed)
            if kind != Kind.DRAIN:
                self._answer(worker, self._step + 1, [])
        self._drained.clear()

    def _take(self) -> None:
        """Determine the workers whose gradients this step uses, and wait for the gradients."""
        for worker in self._workers:
            self._answer_if_due(worker)
        if self._decides:
            self._taken = self._decide()
            self._order.add(TAKEN, ALL_EDGES, self._step, *self._taken)
            numbers = [self._workers.index(worker) for worker in self._taken]
            for server in self._others:
                message = np.array(numbers, np.int64)
                self._channel.send(server, Key(FIRST, self._step), [message])
        else:
            while not self._taken:
                self._handle(self._workers)
        while missing := set(self._taken) - set(self._arrived):
            self._handle(missing)
        for worker in self._arrived:
            self._peers[worker].is_taken = worker in self._taken
            if worker not in self._taken:
                self._discard(worker, self._step)

    def _decide(self) -> tuple[str, ...]:
        """Wait for the fastest workers and return them; workers without rows do not count."""
        with_rows = [worker for worker in self._workers if self._rows[worker]]
        chosen: list[str] = []
        if self._order.replays:
            step, *chosen = self._order.next(TAKEN, ALL_EDGES)
            assert step == self._step, (step, self._step)
        count = min(self._count, len(with_rows))
        while len(chosen) < count:
            self._handle(self._workers)
            chosen = [each for each in self._arrived if self._rows[each]][:count]
        return tuple(worker for worker in self._workers if worker in chosen)

    def _handle(self, workers: Iterable[str]) -> None:
        """Handle the next message of these workers, or the decision of the first server."""
        addresses = self._addresses(workers)
        if not self._decides and not self._taken:
            addresses.append((self._first_server, Key(FIRST, self._step)))
        source, key, numbers = self._receive(addresses)
        if key.edge == FIRST:
            self._taken = tuple(self._workers[number] for number in numbers)
            return
        kind, step = self._read(source, numbers)
        if kind != Kind.REQUEST and step > self._step:
            raise _unexpected(source)
        if kind == Kind.PUSH and step == self._step:
            self._arrived.append(source)
        elif kind == Kind.PUSH:
            self._discard(source, step)
        self._answer_if_due(source)

    def _addresses(self, workers: Iterable[str]) -> list[tuple[str, Key]]:
        return [
            (worker, Key(COMPUTED, self._peers[worker].received + 1))
            for worker in self._workers
            if worker in workers and worker not in self._drained
        ]

    def _receive(
        self, addresses: Sequence[tuple[str, Key]]
    ) -> tuple[str, Key, Sequence[int]]:
        """Wait for the first of several messages; return its source, key and numbers."""
        source, key, pieces = self._channel.pieces_of_first(addresses)
        numbers = [int(number) for *_, view in pieces for number in view]
        return source, key, numbers

    def _read(self, worker: str, numbers: Sequence[int]) -> tuple[Kind, int]:
        """Note a worker's message; return its kind and step."""
        peer = self._peers[worker]
        peer.received += 1
        try:
            kind, step = numbers
            kind = Kind(kind)
        except ValueError:
            raise _unexpected(worker) from None
        if kind == Kind.PUSH:
            peer.wanted, peer.is_taken = step + 1, False
        elif kind == Kind.REQUEST:
            peer.wanted = step
        else:  # DRAIN can arrive early: another server has already ended this step
            self._drained.add(worker)
        return kind, step

    def _answer_if_due(self, worker: str) -> None:
        """Answer a worker that waits for this step."""
        wanted = self._peers[worker].wanted
        if wanted is not None and wanted <= self._step:
            self._answer(worker, self._step, self._offered)

    def _answer(
        self, worker: str, step: int, offered: Sequence[tuple[int, Sequence[Array]]]
    ) -> None:
        peer = self._peers[worker]
        numbers = np.array([step, peer.is_taken, bool(offered)], np.int64)
        self._channel.send(worker, Key(NEWEST, peer.received), [numbers])
        for edge, values in offered:
            key = Key(edge, step)
            self._exchange.send(key, values, self._total, targets=(worker,))
        peer.wanted = None

    def _discard(self, worker: str, step: int) -> None:
        """Receive gradients that are too late, and drop them."""
        for edge in self._sums:
            for _ in self._channel.pieces(worker, Key(edge.id, step)):
                pass


@dataclass(slots=True)
class _Newest:
    """The newest step of a server, as a worker knows it.

    Attributes:
        sent: the number of the last message to the server.
        answered: the number of the last message that the server has answered.
        step: the newest step.
        has_values: whether unread parameters of this step follow.
    """

    sent: int = 0
    answered: int = 0
    step: int = 0
    has_values: bool = False


class NewestStep(StepWorkers):
    """A worker's part: chooses its next step, and learns whether its gradients were used.

    All methods are called by the compute thread.

    Args:
        channel: the node's channel.
        offers: the `offer` edges from each server.
        order: records the steps that used this worker's gradients, or replays them.
    """

    has_drains = True

    def __init__(
        self, channel: Channel, offers: Mapping[str, Sequence[int]], order: Order
    ) -> None:
        self._channel, self._offers, self._order = channel, offers, order
        self._servers = {server: _Newest() for server in offers}
        self._computed = 0  # the last step of this worker
        self._stored: list[tuple[ProgramTable, Sequence[Array]]] = []
        self.is_taken = False

    def joins(self, step: int) -> bool:
        """Wait until a step has begun on all servers, or is over on one server."""
        wanted = step
        if self._order.replays:
            if self._order.peek(JOIN, ALL_EDGES) == [step]:
                self._order.next(JOIN, ALL_EDGES)
            else:
                wanted = step + 1  # the recorded run skipped this step
        self._settle()
        while max(each.step for each in self._servers.values()) <= step:
            behind = [
                server
                for server, each in self._servers.items()
                if each.step < wanted or not each.has_values
            ]
            if not behind:
                return True
            for server in behind:
                self._send(server, Kind.REQUEST, wanted)
            self._settle()
        return False

    def store(self, table: ProgramTable, values: Sequence[Array]) -> None:
        self._stored.append((table, values))

    def end(self, step: int) -> None:
        self._computed, self.is_taken = step, None
        for server, each in self._servers.items():
            each.has_values = False  # the program has read them
            self._send(server, Kind.PUSH, step)

    def drain(self, step: int) -> None:
        self._settle()
        for server in self._servers:
            self._send(server, Kind.DRAIN, step)
            self._servers[server].answered += 1  # servers do not answer DRAIN

    def _send(self, server: str, kind: Kind, step: int) -> None:
        each = self._servers[server]
        each.sent += 1
        numbers = np.array([kind, step], np.int64)
        self._channel.send(server, Key(COMPUTED, each.sent), [numbers])

    def _settle(self) -> None:
        """Wait for all answers. If the last step counts, load the values that it stored."""
        for server, each in self._servers.items():
            if each.answered == each.sent:
                continue
            key = Key(NEWEST, each.sent)
            ((step, is_taken, has_values),) = self._channel.receive(server, key)
            if each.has_values:
                self._discard(server, each.step)
            each.answered = each.sent
            each.step, each.has_values = int(step), bool(has_values)
            if is_taken and not self.is_taken:
                self.is_taken = True
                self._order.add(JOIN, ALL_EDGES, self._computed)
        self.is_taken = bool(self.is_taken)
        for table, values in self._stored if self.is_taken else ():
            table.load(values)
        self._stored = []

    def _discard(self, server: str, step: int) -> None:
        """Receive parameters of a step that is over, and drop them."""
        for edge in self._offers[server]:
            for _ in self._channel.pieces(server, Key(edge, step)):
                pass


def _unexpected(worker: str) -> RunError:
    return RunError(
        f"{worker} sent a message that does not belong to this build",
        hint="give every node of a run the same build",
    )
