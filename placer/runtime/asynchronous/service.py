"""A server's part in tables without lockstep: which message it handles next, and when it
answers whom."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from placer.channel.interface import Array, Channel, Key, Piece
from placer.errors import RunError
from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import Geo, Mode
from placer.runtime.asynchronous.recorded_order import ALL_EDGES, TAKE, Order
from placer.runtime.asynchronous.worker_sums import WorkerSums
from placer.runtime.exchange.worker_messages import (
    HEADER_SIZE,
    MessageKind,
    WorkerMessage,
    header,
    join_flat,
    malformed,
    malformed_on,
)
from placer.tables.key_sums import KeyPart

ReadKeys = Callable[[Edge, str, Sequence[Array]], Sequence[KeyPart]]
ALL: Final = math.inf
"""The steps that a request waits for which is answered when all workers have drained."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a worker got: how many steps of other workers were applied before, and the
    values, if they are kept."""

    others: int
    values: Sequence[Array]


@dataclass(slots=True)
class _Served:
    """A table as its server sees it.

    Attributes:
        pull, push: the edges of the table.
        version: how many pushes were applied.
        received: the number of messages of each worker.
        applied: the newest step of each worker that is applied.
        drained: the workers that send nothing more before the next drain has ended.
        waiting: requests that cannot be answered yet, with the steps that they wait for.
        sums: what the server answers with, if workers update by themselves.
        keeps: whether the values of answers are kept until they are not used any more.
        round: the pushes that wait for those of all other workers; None if each is applied
            by itself.
        answers: the answers to each worker, by version, from the one that it uses on.
        counts: how many steps of each worker were applied.
        staleness: how many pushes had each staleness: so many steps of other workers
            were applied between the answer that a push was computed from and the push.
        ask: the edge of the keys of sparse tables, if it is of those.
        asked: the keys that each worker has asked for, and not pushed gradients of: those
            of this step, and of the next one.
    """

    pull: Edge
    push: Edge
    ask: Edge | None = None
    keeps: bool = False
    sums: WorkerSums | None = None
    round: dict[str, WorkerMessage] | None = None
    version: int = 0
    received: Counter[str] = field(default_factory=Counter)
    applied: dict[str, int] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    waiting: list[tuple[float, WorkerMessage]] = field(default_factory=list)
    answers: dict[str, dict[int, _Answer]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    asked: dict[str, list[Sequence[KeyPart]]] = field(default_factory=dict)

    @property
    def answering_edge(self) -> int:
        """The number of the edge whose case answers a request."""
        return self.pull.id if self.ask is None else self.ask.id

    @property
    def horizon(self) -> int:
        """The newest step up to which all steps of all workers are applied. A worker
        that has drained counts as infinitely far ahead."""
        open_steps = [s for w, s in self.applied.items() if w not in self.drained]
        return min(open_steps, default=max(self.applied.values()))

    @property
    def answered(self) -> float:
        """Requests that wait for steps up to this one can be answered: all of them, when
        all workers have drained."""
        if len(self.drained) == len(self.push.sources):
            return math.inf
        return self.horizon

    def count_others(self, worker: str) -> int:
        return self.counts.total() - self.counts[worker]


def _make_served(server: str, pull: Edge, push: Edge, mode: Mode) -> _Served:
    served = _Served(pull, push, keeps=mode.compensate is not None)
    if mode.in_rounds:
        served.round = {}
    if pull.declared and pull.declared.moves == "sums":
        served.sums = WorkerSums(push, server)
    if served.sums is not None or isinstance(mode, Geo):
        # Workers start from the initial values, without a message.
        served.answers = {worker: {0: _Answer(0, ())} for worker in push.sources}
    return served


class Service:
    """The tables without lockstep of one server.

    `messages` and `answer` are called by the hook `serve`, in a thread of its own;
    `wait_for_step` and `drain` by the compute thread.

    Args:
        channel: the node's channel.
        tables: the `pull` and the `push` edge of each table, and how workers agree on it.
        order: records which message comes next, or replays that.
        sparse: the edges of keys, rows and gradients of sparse tables that are looked up
            together.
        read_keys: returns the keys in a message of an edge of keys, from a worker.
    """

    def __init__(
        self,
        channel: Channel,
        tables: Sequence[tuple[Edge, Edge, Mode]],
        order: Order,
        sparse: Sequence[tuple[Edge, Edge, Edge]] = (),
        read_keys: ReadKeys | None = None,
    ) -> None:
        self._channel, self._order = channel, order
        self._read_keys = read_keys
        self._served = {
            push.id: _make_served(channel.node, pull, push, mode)
            for pull, push, mode in tables
        }
        self._served |= {
            push.id: _Served(give, push, ask) for ask, give, push in sparse
        }
        self._by_answer = {each.answering_edge: each for each in self._served.values()}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._ended = True
        for served in self._served.values():
            served.applied = dict.fromkeys(served.push.sources, 0)

    # For the compute thread.

    def resume(self, steps: Mapping[str, int]) -> None:
        """Continue after the steps that workers have done; before the first start."""
        for served in self._served.values():
            served.applied = {worker: steps[worker] for worker in served.push.sources}

    def start(self, serve: Callable[[], None]) -> None:
        """Run the hook `serve` in a thread until all workers have drained, unless it
        runs already."""
        if self._thread is not None:
            return
        for served in self._served.values():
            served.drained.clear()
        self._ended = False

        def run() -> None:
            try:
                serve()
            except BaseException as error:
                self._error = error
            with self._changed:
                self._ended = True
                self._changed.notify_all()

        self._thread = threading.Thread(
            target=run, name=f"placer service of {self._channel.node}", daemon=True
        )
        self._thread.start()

    def wait_for_step(self, step: int) -> bool:
        """Wait until a step of every worker is applied to every table that workers push to
        in each step, or all workers have drained; return whether it is applied. Tables of
        differences (GEO) are not waited for."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._slowest() >= step)
        self._raise_error()
        return self._slowest() >= step

    def drain(self) -> None:
        """Wait until all workers have drained, and the hook has ended."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise_error()

    def steps_of_rows(self) -> dict[str, int]:
        """Return the newest step of all workers that is applied, by sparse table."""
        return {
            str(value.table): min(served.applied.values())
            for served in self._served.values()
            if served.ask is not None
            for value in served.push.values
        }

    @property
    def staleness(self) -> dict[int, int]:
        """How many pushes had each staleness, over all tables."""
        total: Counter[int] = Counter()
        for served in self._served.values():
            total += served.staleness
        return dict(sorted(total.items()))

    def _slowest(self) -> float:
        """Return the newest step that is applied to every table that workers push to in each
        step, or infinity without such a table."""
        newest = (
            min(served.applied.values())
            for served in self._served.values()
            if served.push.declared and served.push.declared.moves != "differences"
        )
        return min(newest, default=math.inf)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    # For the hook.

    def messages(self) -> Iterator[WorkerMessage]:
        """Return the messages to handle, in the order of their arrival, until all
        workers have drained."""
        open_workers = {
            (served.push.id, worker)
            for served in self._served.values()
            for worker in served.push.sources
        }
        while open_workers:
            served, message, kind, wanted = self._next(open_workers)
            match kind:
                case MessageKind.PUSH if served.round is not None:
                    yield from self._round(served, message, served.round)
                case MessageKind.PUSH:
                    if message.share:
                        yield message
                        self._applied(served, message)
                    self._advance(served, message.worker, message.step)
                    if served.ask is None:
                        yield self._to_answer(served, message)
                case MessageKind.REQUEST | MessageKind.ASK:
                    served.waiting.append((wanted, message))
                case MessageKind.DRAIN:
                    open_workers.remove((message.edge, message.worker))
                    served.drained.add(message.worker)
                    if wanted > served.applied[message.worker]:
                        # It has done steps after which it has pushed nothing.
                        self._advance(served, message.worker, wanted)
                    if served.sums is not None:
                        served.waiting.append((ALL, message))
            yield from self._answerable(served)

    def answer(self, message: WorkerMessage, values: Sequence[Array]) -> None:
        """Answer a worker with the newest values of a table."""
        self._answer(self._by_answer[message.edge], message, (), values)

    def answer_rows(self, message: WorkerMessage, rows: Sequence[Array]) -> None:
        """Answer a worker with the rows of the keys that it asks for."""
        self._answer(self._by_answer[message.edge], message, (), rows)

    def add_to_sums(self, message: WorkerMessage) -> None:
        """Add the gradients of a worker to the sums for all workers."""
        sums = self._served[message.edge].sums
        assert sums is not None
        sums.add(message)

    def send_sum(self, message: WorkerMessage) -> None:
        """Answer a worker with the sum since it has asked last."""
        served = self._by_answer[message.edge]
        assert served.sums is not None
        total = served.sums.take(message.worker)
        self._answer(served, message, (total.steps, total.newest), total.arrays)

    def _answer(
        self,
        served: _Served,
        message: WorkerMessage,
        numbers: Sequence[int],
        values: Sequence[Array],
    ) -> None:
        worker = message.worker
        kept = values if served.keeps else ()
        answer = _Answer(served.count_others(worker), kept)
        served.answers.setdefault(worker, {})[served.version] = answer
        done = min(served.applied.values())
        head = header(served.version, served.horizon, done, *numbers)
        key = Key(served.pull.id, message.number)
        self._channel.send(worker, key, [head, *values])

    def _next(
        self, open_workers: set[tuple[int, str]]
    ) -> tuple[_Served, WorkerMessage, MessageKind, int]:
        addresses = [
            (worker, Key(edge, self._served[edge].received[worker] + 1))
            for edge, worker in sorted(open_workers)
        ]
        if self._order.replays:
            addresses = [self._recorded(open_workers)]
        worker, key, pieces = self._channel.pieces_of_first(addresses)
        self._order.add(TAKE, ALL_EDGES, key.edge, worker)
        served = self._served[key.edge]
        served.received[worker] += 1
        kind, *numbers = self._read_header(worker, key, next(pieces, None))
        if kind == MessageKind.PUSH:
            message = self._read_push(served, worker, key, numbers, pieces)
        elif kind == MessageKind.ASK:
            message = self._read_ask(served, worker, key, pieces)
        else:
            for _ in pieces:
                raise malformed_on(worker, key)
            message = WorkerMessage(key.edge, worker, key.step)
        return served, message, kind, numbers[0]

    def _read_push(
        self,
        served: _Served,
        worker: str,
        key: Key,
        numbers: Sequence[int],
        pieces: Iterator[Piece],
    ) -> WorkerMessage:
        step, steps, version, rows, count, *_ = numbers
        answers = served.answers.get(worker, {})
        fits = 0 < steps <= step and 0 <= rows <= count and count > 0
        if version not in answers or not fits:
            raise malformed_on(worker, key)
        for older in [each for each in answers if each < version]:
            del answers[older]
        if not rows and next(pieces, None) is not None:
            raise malformed_on(worker, key)
        keys: Sequence[KeyPart] = ()
        if served.ask is not None:
            if not served.asked.get(worker):
                raise malformed_on(worker, key)
            keys = served.asked[worker].pop(0)
        base = answers[version]
        staleness = served.count_others(worker) - base.others
        least = min(step if w == worker else s for w, s in served.applied.items())
        return WorkerMessage(
            key.edge, worker, key.step, step, steps, rows / count, staleness,
            base.values, (pieces,), keys, least,
        )  # fmt: skip

    def _read_ask(
        self, served: _Served, worker: str, key: Key, pieces: Iterator[Piece]
    ) -> WorkerMessage:
        """Read the keys whose rows a worker asks for; it asks for those of a step and of the
        next one before it pushes the gradients of the first."""
        waiting = served.asked.setdefault(worker, [])
        if served.ask is None or self._read_keys is None or len(waiting) > 1:
            raise malformed_on(worker, key)
        from placer.runtime.exchange.row_exchange import dtypes_of_keys

        arrays = join_flat(pieces, dtypes_of_keys(served.ask))
        if arrays is None:
            raise malformed_on(worker, key)
        keys = self._read_keys(served.ask, worker, arrays)
        waiting.append(keys)
        return WorkerMessage(served.ask.id, worker, key.step, keys=keys)

    def _round(
        self,
        served: _Served,
        message: WorkerMessage,
        waiting: dict[str, WorkerMessage],
    ) -> Iterator[WorkerMessage]:
        """Return what to do for a push that is applied with those of all other workers,
        in their order: nothing, until all are there."""
        waiting[message.worker] = message
        if len(waiting) < len(served.push.sources):
            return
        messages = [waiting.pop(worker) for worker in served.push.sources]
        for each in messages:
            if each.step != message.step:
                raise malformed(each)
        parts = tuple(part for each in messages for part in each.parts)
        yield replace(messages[0], parts=parts)
        served.version += 1
        for each in messages:
            self._advance(served, each.worker, each.step)
        for each in messages:
            yield self._to_answer(served, each)

    def _recorded(self, open_workers: set[tuple[int, str]]) -> tuple[str, Key]:
        """Return the address of the message that is next in a replayed order."""
        edge, worker = self._order.next(TAKE, ALL_EDGES)
        if (edge, worker) not in open_workers:
            raise RunError(
                f"the recorded order has a message of {worker} on edge {edge}, which has"
                " no more",
                hint="replay with the options of the run that was recorded",
            )
        return worker, Key(edge, self._served[edge].received[worker] + 1)

    def _read_header(
        self, worker: str, key: Key, piece: Any
    ) -> tuple[MessageKind, *tuple[int, ...]]:
        if piece is None or piece[2].dtype != np.int64 or piece[2].size != HEADER_SIZE:
            raise malformed_on(worker, key)
        kind, *numbers = (int(number) for number in piece[2])
        try:
            return MessageKind(kind), *numbers
        except ValueError:
            raise malformed_on(worker, key) from None

    def _applied(self, served: _Served, message: WorkerMessage) -> None:
        """Note that a push was applied."""
        served.staleness[message.staleness] += 1
        served.counts[message.worker] += message.steps
        served.version += 1

    def _advance(self, served: _Served, worker: str, step: int) -> None:
        with self._changed:
            served.applied[worker] = step
            self._changed.notify_all()

    def _to_answer(self, served: _Served, message: WorkerMessage) -> WorkerMessage:
        edge = served.answering_edge
        return WorkerMessage(edge, message.worker, message.number, keys=message.keys)

    def _answerable(self, served: _Served) -> Iterator[WorkerMessage]:
        """Return the requests that can be answered now."""
        limit = served.answered
        ready = [message for wanted, message in served.waiting if wanted <= limit]
        served.waiting = [each for each in served.waiting if each[0] > limit]
        for message in ready:
            yield self._to_answer(served, message)
