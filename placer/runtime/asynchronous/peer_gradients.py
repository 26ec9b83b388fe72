"""A worker's side of an asynchronous table that workers update without a server.

A worker sends its gradients to all workers, and applies the received gradients when its next
step begins. Its messages on the `push_all` edge are numbered from 1, and begin with a header:

    PUSH   PUSH, step, rows of the worker, rows of the batch, number of other workers' steps
           that the parameters contained
           then the gradient of each block; no gradients without rows
    DRAIN  DRAIN, newest step: the worker has sent all its gradients

Received gradients are added in the order of the workers and of each worker's steps, and applied
at once. A worker's own gradients are handled in the same way, without a message.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placer.channel.interface import Array, Channel, Key, Piece
from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import Mode
from placer.runtime.asynchronous.pushed import join_pieces
from placer.runtime.asynchronous.recorded_order import USE, Order
from placer.runtime.asynchronous.worker_end import WorkerEnd
from placer.runtime.exchange.worker_messages import (
    HEADER_SIZE,
    MessageKind,
    WorkerMessage,
    header,
    malformed_on,
)
from placer.system.memory.arena import Arena
from placer.system.owned_threads import END_LIMIT, OwnedThreads
from placer.tables.half_sums import add_up


@dataclass(frozen=True, slots=True)
class _Gradients:
    """The gradients of a step; no arrays without rows."""

    step: int
    rows: tuple[int, int]  # of the worker, and of the batch
    seen: int  # steps of other workers that the parameters contained
    arrays: Sequence[Array]


class PeerGradients(WorkerEnd):
    """A worker's side of one table.

    The compute thread calls all public methods.

    Args:
        channel: the node's channel.
        push: the edge of the table, from all workers to all workers.
        mode: how the workers agree on updates; it has a bound.
        order: records how many gradients of each worker are applied before each step, or
            replays them.
    """

    def __init__(self, channel: Channel, push: Edge, mode: Mode, order: Order) -> None:
        assert mode.bound is not None, push.id
        self._channel, self._push = channel, push
        self._queue_length, self._bound, self._order = mode.queue, mode.bound, order
        self._workers = push.sources
        self._peers = [each for each in self._workers if each != channel.node]
        self._arena = Arena()
        self._threads = OwnedThreads()
        self._changed = self._threads.changed
        self._arrived: Mapping[str, deque[_Gradients]] = {
            worker: deque() for worker in self._workers
        }
        self._steps = dict.fromkeys(self._workers, 0)  # newest received step
        self._received: Counter[str] = Counter()  # messages of each peer
        # Since the last drain:
        self._taken: Counter[str] = Counter()  # applied messages
        self._applied: Counter[str] = Counter()  # applied gradients
        self._queue: deque[_Gradients] = deque()
        self._sent = 0
        self._draining: int | None = None
        self._is_open = False  # from the start of a step to the end of a drain
        self._open: set[str] = set()  # peers that have not drained
        self._closed = False
        self._staleness: Counter[int] = Counter()
        for run, what in ((self._send, "sender"), (self._receive, "receiver")):
            self._threads.begin(run, f"placer gradient {what} of {channel.node}")

    def resume(self, steps: Mapping[str, int]) -> None:
        self._steps = {worker: steps[worker] for worker in self._workers}

    def push(self, step: int, rows: tuple[int, int], arrays: Sequence[Array]) -> None:
        """Apply the gradients of a step locally, and queue them for the peers. Waits
        while the queue is full."""
        own = self._channel.node
        with self._changed:
            while len(self._queue) >= self._queue_length:
                self._wait()
            gradients = _Gradients(step, rows, self._count_others(own), arrays)
            self._arrived[own].append(gradients)
            self._steps[own] = step
            if self._peers:
                self._queue.append(gradients)
            self._changed.notify_all()

    def take(self, step: int) -> list[WorkerMessage]:
        with self._changed:
            self._begin()
            if self._order.replays:
                recorded, counts = self._order.next(USE, self._push.id)
                assert recorded == step, (recorded, step)
                while any(
                    self._taken[worker] + len(self._arrived[worker]) < count
                    for worker, count in zip(self._workers, counts, strict=True)
                ):
                    self._wait()
            else:
                while not self._may_begin(step):
                    self._wait()
                counts = [
                    self._taken[worker] + len(self._arrived[worker])
                    for worker in self._workers
                ]
            taken = self._pop(counts)
        self._order.add(USE, self._push.id, step, counts)
        return self._sum(taken)

    def take_rest(self) -> list[WorkerMessage]:
        with self._changed:
            counts = [
                self._taken[worker] + len(self._arrived[worker])
                for worker in self._workers
            ]
            taken = self._pop(counts)
        rest = self._sum(taken)
        self._taken.clear()
        self._applied.clear()
        return rest

    def drain(self, step: int, *, ends: bool = False) -> None:
        del ends
        with self._changed:
            self._begin()
            self._draining = step
            while self._draining is not None or self._open:
                self._wait()
            self._is_open = False

    @property
    def horizon(self) -> int:
        with self._changed:
            return min(self._steps.values())

    @property
    def staleness(self) -> Counter[int]:
        """The number of applied gradients for each staleness. Staleness counts the
        steps of other workers that were applied after the gradients' parameters were
        read."""
        return self._staleness

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._threads.join(END_LIMIT)

    @property
    def threads(self) -> OwnedThreads:
        return self._threads

    def _begin(self) -> None:
        """Receive from all peers until they drain; called with the lock held."""
        if not self._is_open:
            self._is_open, self._open = True, {*self._peers}
            self._changed.notify_all()

    def _may_begin(self, step: int) -> bool:
        needed = step - 1 - self._bound
        return all(
            self._steps[peer] >= needed or peer not in self._open
            for peer in self._peers
        )

    def _count_others(self, worker: str) -> int:
        return self._applied.total() - self._applied[worker]

    def _pop(self, counts: Sequence[int]) -> list[tuple[str, _Gradients]]:
        """Return received gradients up to these message counts, in the order of workers."""
        taken = []
        for worker, count in zip(self._workers, counts, strict=True):
            while self._taken[worker] < count:
                taken.append((worker, self._arrived[worker].popleft()))
                self._taken[worker] += 1
        return [each for each in taken if each[1].rows[0]]

    def _sum(self, taken: Sequence[tuple[str, _Gradients]]) -> list[WorkerMessage]:
        if not taken:
            return []
        for worker, gradients in taken:
            stale = self._count_others(worker) - gradients.seen
            self._staleness[max(0, stale)] += 1
        for worker, _ in taken:
            self._applied[worker] += 1
        newest = max(gradients.step for _, gradients in taken)
        return [
            WorkerMessage(
                self._push.id, self._channel.node, 0, newest, len(taken),
                parts=(self._pieces([gradients.arrays for _, gradients in taken]),),
            )
        ]  # fmt: skip

    def _pieces(self, parts: Sequence[Sequence[Array]]) -> Iterator[Piece]:
        for index, arrays in enumerate(zip(*parts, strict=True), 1):
            yield index, 0, self._add([array.reshape(-1) for array in arrays])

    def _add(self, parts: Sequence[Array]) -> Array:
        """Return the sum of arrays, added in order; half floats are added in float32."""
        first = parts[0]
        if len(parts) == 1:
            return first
        total = self._arena.allocate(first.dtype, first.shape)
        add_up(parts, total)
        return total

    def _wait(self) -> None:
        """Wait for a change; called with the lock held. Raises the error that has ended
        a thread, even if it ended before the call."""
        self._changed.notify_all()
        self._threads.wait()

    # Run by the threads.

    def _send(self) -> None:
        while not self._closed:
            self._send_next()

    def _receive(self) -> None:
        while not self._closed:
            self._receive_next()

    def _send_next(self) -> None:
        """Send the next queued gradients to all peers; DRAIN if the queue is empty."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._queue or self._draining is not None or self._closed
            )
            if self._closed:
                return
            gradients = self._queue[0] if self._queue else None
            step = self._draining
        if gradients is None:
            assert step is not None
            message = [header(MessageKind.DRAIN, step)]
        else:
            numbers = gradients.step, *gradients.rows, gradients.seen
            arrays = gradients.arrays if gradients.rows[0] else ()
            message = [header(MessageKind.PUSH, *numbers), *arrays]
        self._sent += 1
        for peer in self._peers:
            self._channel.send(peer, Key(self._push.id, self._sent), message)
        with self._changed:
            if gradients is None:
                self._draining = None
            else:
                self._queue.popleft()
            self._changed.notify_all()

    def _receive_next(self) -> None:
        """Receive the next message of any peer."""
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._closed)
            if self._closed:
                return
            addresses = [
                (peer, Key(self._push.id, self._received[peer] + 1))
                for peer in self._peers
                if peer in self._open
            ]
        peer, key, pieces = self._channel.pieces_of_first(addresses)
        kind, step, gradients = self._read(peer, key, pieces)
        with self._changed:
            self._received[peer] += 1
            if gradients is not None:
                self._arrived[peer].append(gradients)
            self._steps[peer] = max(self._steps[peer], step)
            if kind == MessageKind.DRAIN:
                self._open.remove(peer)
            self._changed.notify_all()

    def _read(
        self, peer: str, key: Key, pieces: Iterator[Piece]
    ) -> tuple[MessageKind, int, _Gradients | None]:
        piece = next(pieces, None)
        if piece is None or piece[2].dtype != np.int64 or piece[2].size != HEADER_SIZE:
            raise malformed_on(peer, key)
        kind, step, rows, count, seen, *_ = (int(number) for number in piece[2])
        if kind == MessageKind.PUSH and step != self._steps[peer] + 1:
            raise malformed_on(peer, key)
        if kind == MessageKind.DRAIN or (kind == MessageKind.PUSH and not rows):
            if next(pieces, None) is not None:
                raise malformed_on(peer, key)
            if kind == MessageKind.DRAIN:
                return MessageKind.DRAIN, step, None
            return MessageKind.PUSH, step, _Gradients(step, (0, count), seen, ())
        if kind != MessageKind.PUSH:
            raise malformed_on(peer, key)
        message = WorkerMessage(self._push.id, peer, key.step, step, parts=(pieces,))
        values = self._push.values
        arrays = join_pieces(message, values, np.dtype(values[0].dtype))
        return MessageKind.PUSH, step, _Gradients(step, (rows, count), seen, arrays)
