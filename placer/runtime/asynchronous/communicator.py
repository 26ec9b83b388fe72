"""A worker's side of an asynchronous table.

A thread sends gradients and receives answers while the next step is computed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placer.channel.interface import Array, Channel, Key
from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import GradientMode
from placer.runtime.asynchronous.recorded_order import SEND, Order
from placer.runtime.asynchronous.worker_end import WorkerEnd
from placer.runtime.exchange.range_exchange import RangeEdge
from placer.runtime.exchange.worker_messages import MessageKind, header, is_answered
from placer.system.owned_threads import END_LIMIT, OwnedThreads
from placer.tables.half_sums import mean_of

Versions = tuple[int, ...]
"""The version number of each server of a table."""


@dataclass(frozen=True, slots=True)
class _Gradients:
    """The gradients of a step."""

    step: int
    versions: Versions  # of the parameters that the gradients were computed from
    rows: tuple[int, int]  # of the worker, and of the batch
    arrays: Sequence[Array]


class Communicator(WorkerEnd):
    """A worker's side of one asynchronous table.

    The compute thread calls `push` and `drain`. Subclasses define how answers are used.

    Args:
        channel: the node's channel.
        pull, push: the edges of the table. They connect to one server, or to several
            servers that each hold a range of the gradients.
        mode: how the workers agree on updates.
        order: records when messages are sent, or replays them.
    """

    def __init__(
        self,
        channel: Channel,
        pull: Edge,
        push: Edge,
        mode: GradientMode,
        order: Order,
    ) -> None:
        self._servers = push.targets
        self._channel = channel
        self._pull, self._push = pull, push
        self._mode, self._order = mode, order
        self._ranges = RangeEdge(push) if push.is_flat else None
        self._threads = OwnedThreads()
        self._changed = self._threads.changed
        self._queue: deque[_Gradients] = deque()
        self._sending = False  # a push has no answer yet
        self._horizon = 0  # newest step applied for all workers that have not drained
        self._done = 0  # newest step applied for all workers
        # The versions that the current step uses.
        self._used: Versions = (0,) * len(self._servers)
        self._wanted: int | None = None  # the horizon that the compute thread waits for
        self._draining: int | None = None
        self._closed = False
        self._number = 0  # number of the last message
        name = f"placer exchange with {', '.join(self._servers)}"
        self._threads.begin(self._run, name)

    def push(self, step: int, rows: tuple[int, int], arrays: Sequence[Array]) -> None:
        with self._changed:
            while len(self._queue) >= self._mode.queue:
                self._wait()
            self._queue.append(_Gradients(step, self._used, rows, arrays))
            self._changed.notify_all()

    def resume(self, steps: Mapping[str, int]) -> None:
        with self._changed:
            self._horizon = self._done = min(steps.values())

    def drain(self, step: int, *, ends: bool = False) -> None:
        del ends
        with self._changed:
            self._draining = step
            while self._draining is not None:
                self._wait()

    @property
    def horizon(self) -> int:
        with self._changed:
            return self._done

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._threads.join(END_LIMIT)

    @property
    def threads(self) -> OwnedThreads:
        return self._threads

    # For subclasses.

    @abstractmethod
    def _take(self, answers: Sequence[Sequence[Array]]) -> int:
        """Store the answers of all servers to a message; called with the lock held.
        Returns the newest step for which all workers' gradients are included."""

    @abstractmethod
    def _end_drain(self) -> None:
        """Note the end of a drain; called with the lock held."""

    def _may_use(self, horizon: int, known: int | None) -> bool:
        """Return True if all steps up to `horizon` are applied in the newest answer
        (`known`); otherwise request newer parameters."""
        if self._mode.waits_for_own and (self._queue or self._sending):
            return False
        if known is not None and known >= horizon:
            return True
        self._wanted = horizon
        return False

    def _horizon_of(self, step: int) -> int:
        """Return the step that all workers must have applied before this step begins."""
        bound = self._mode.bound
        return 0 if bound is None else step - 1 - bound

    def _wait(self) -> None:
        """Wait for a change; called with the lock held. Raises the error that has ended
        the thread, even if it ended before the call."""
        self._changed.notify_all()
        self._threads.wait()

    # Run by the thread.

    def _run(self) -> None:
        while not self._closed:
            self._next()

    def _next(self) -> None:
        """Send a message and, if its kind has an answer, receive the answer."""
        with self._changed:
            kind, number = self._choose()
            if kind is None:
                return
            has_answer = is_answered(kind, self._pull)
            merged = []
            if kind == MessageKind.PUSH:
                merged = [self._queue.popleft() for _ in range(number)]
                self._sending = has_answer
                self._changed.notify_all()  # the queue has room again
        self._order.add(SEND, self._push.id, int(kind), number)
        if kind == MessageKind.PUSH:
            computed = [each for each in merged if each.rows[0]] or merged
            self._send_gradients(merged[-1].step, len(merged), computed)
        else:
            self._send([header(kind, number)] * len(self._servers))
        if has_answer:
            self._receive()
        if kind == MessageKind.DRAIN:
            with self._changed:
                self._end_drain()
                self._draining = None
                self._changed.notify_all()

    def _choose(self) -> tuple[MessageKind | None, int]:
        """Wait for something to send: gradients, then requests, then a drain; called
        with the lock held. Return its kind and number, as in `order`."""
        wait_for = self._changed.wait_for
        wait_for(lambda: self._waiting() or self._closed)
        if not self._order.replays or self._closed:
            return self._waiting() or (None, 0)
        recorded, number = self._order.next(SEND, self._push.id)
        kind = MessageKind(recorded)
        if kind == MessageKind.PUSH:
            wait_for(lambda: len(self._queue) >= number or self._closed)
        elif kind == MessageKind.DRAIN:
            wait_for(lambda: self._draining is not None or self._closed)
        return (None, 0) if self._closed else (kind, number)

    def _waiting(self) -> tuple[MessageKind, int] | None:
        """Return the kind and number of the next message, or None without one."""
        if self._queue:
            count = min(len(self._queue), self._mode.max_merge)
            return MessageKind.PUSH, count
        if self._wanted is not None:
            return MessageKind.REQUEST, self._wanted
        if self._draining is not None:
            return MessageKind.DRAIN, self._draining
        return None

    def _send_gradients(
        self, step: int, steps: int, merged: Sequence[_Gradients]
    ) -> None:
        """Send the gradients of `steps` steps up to `step`. `merged` omits steps without rows."""
        rows, arrays = merged[-1].rows, self._merge(merged)
        headers = [
            header(MessageKind.PUSH, step, steps, version, *rows)
            for version in merged[0].versions
        ]
        self._send(headers, arrays)

    def _merge(self, merged: Sequence[_Gradients]) -> list[Array]:
        """Return the gradients of one step, or the sum or mean of several steps."""
        if not merged[0].rows[0]:
            return []
        if len(merged) == 1:
            return [*merged[0].arrays]
        divisor = len(merged) if self._mode.merge == "mean" else 1
        return [
            mean_of(parts, divisor, parts[0].dtype)
            for parts in zip(*(each.arrays for each in merged), strict=True)
        ]

    def _send(self, headers: Sequence[Array], arrays: Sequence[Array] = ()) -> None:
        """Send each server a message with its header and its part of the arrays."""
        self._number += 1
        key = Key(self._push.id, self._number)
        flat = [array.reshape(-1) for array in arrays]
        for server, numbers in zip(self._servers, headers, strict=True):
            part = arrays
            if self._ranges is not None and arrays:
                part = [flat[i][a:b] for i, a, b in self._ranges.of_owner[server]]
            self._channel.send(server, key, [numbers, *part])

    def _receive(self) -> None:
        """Receive the answers to the last message."""
        key = Key(self._pull.id, self._number)
        answers = [self._channel.receive(server, key) for server in self._servers]
        with self._changed:
            self._sending = False
            self._done = min(int(answer[0][2]) for answer in answers)
            self._horizon = self._take(answers)
            if self._wanted is not None and self._wanted <= self._horizon:
                self._wanted = None
            self._changed.notify_all()
