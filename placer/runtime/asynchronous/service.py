"""The server side of asynchronous tables: handles the messages of workers and answers them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from placer.channel.interface import Array, Channel, Key
from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import Mode
from placer.runtime.asynchronous.arriving_messages import ArrivingMessages, ReadKeys
from placer.runtime.asynchronous.recorded_order import Order
from placer.runtime.asynchronous.served_table import Answer, ServedTable, serve_table
from placer.runtime.exchange.worker_messages import (
    MessageKind,
    WorkerMessage,
    header,
    is_answered,
    malformed,
)
from placer.system.owned_threads import END_LIMIT, OwnedThreads

ALL: Final = math.inf
"""The step of a request that is answered once all workers have drained."""


class Service:
    """The asynchronous tables of one server.

    The hook `serve` runs in its own thread and calls `messages` and `answer`. The compute
    thread calls `wait_for_step` and `drain`.

    Args:
        channel: the node's channel.
        tables: the `pull` edge, the `push` edge and the mode of each table.
        order: records the order of the messages, or replays it.
        sparse: the edges of keys, rows and gradients of sparse tables that are looked up
            together.
        read_keys: returns the keys in a worker's message on an edge of keys.
    """

    def __init__(
        self,
        channel: Channel,
        tables: Sequence[tuple[Edge, Edge, Mode]],
        order: Order,
        sparse: Sequence[tuple[Edge, Edge, Edge]] = (),
        read_keys: ReadKeys | None = None,
    ) -> None:
        self._channel = channel
        self._served = {
            push.id: serve_table(channel.node, pull, push, mode)
            for pull, push, mode in tables
        }
        self._served |= {
            push.id: ServedTable(give, push, ask) for ask, give, push in sparse
        }
        self._by_answer = {each.answering_edge: each for each in self._served.values()}
        self._arriving = ArrivingMessages(channel, self._served, order, read_keys)
        self._threads = OwnedThreads()
        self._changed = self._threads.changed
        self._is_serving = False  # from the start until the drain
        self._ended = True  # whether the hook has ended
        for served in self._served.values():
            served.applied = dict.fromkeys(served.push.sources, 0)

    # For the compute thread.

    def resume(self, steps: Mapping[str, int]) -> None:
        """Continue after the last finished step of each worker; call it before `start`."""
        for served in self._served.values():
            served.applied = {worker: steps[worker] for worker in served.push.sources}

    def start(self, serve: Callable[[], None]) -> None:
        """Run the hook `serve` in a thread, unless it is running, until all workers drain."""
        if self._is_serving:
            return
        for served in self._served.values():
            served.begin()
        self._is_serving, self._ended = True, False

        def run() -> None:
            serve()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

        self._threads.begin(run, f"placer service of {self._channel.node}")

    def wait_for_step(self, step: int) -> bool:
        """Wait until every worker's step is applied to every table, or all workers have drained.

        Tables in the mode `geo` do not count. Returns True if the step is applied.
        """
        self._threads.wait_for(lambda: self._ended or self._slowest() >= step)
        self._threads.check()
        return self._slowest() >= step

    def drain(self) -> None:
        """Wait until all workers have drained and the hook has ended."""
        self._threads.wait_for(lambda: self._ended)
        self._threads.join()
        self._is_serving = False
        self._threads.check()

    def close(self) -> None:
        """Wait for the end of the thread, after all workers have drained or the run has failed."""
        self._threads.join(END_LIMIT)

    @property
    def threads(self) -> OwnedThreads:
        """The thread of the hook."""
        return self._threads

    def steps_of_rows(self) -> dict[str, int]:
        """Return the newest step applied for all workers, by sparse table."""
        return {
            table: min(served.applied.values())
            for served in self._served.values()
            if served.ask is not None
            for value in served.push.values
            for table in value.tables
        }

    @property
    def staleness(self) -> dict[int, int]:
        """The number of pushed gradients for each staleness, over all tables."""
        return self._staleness(of_differences=False)

    @property
    def geo_staleness(self) -> dict[int, int]:
        """The number of pushed differences (`geo`) for each staleness, over all tables."""
        return self._staleness(of_differences=True)

    def _staleness(self, *, of_differences: bool) -> dict[int, int]:
        total: Counter[int] = Counter()
        for served in self._served.values():
            if served.takes_differences == of_differences:
                total += Counter(served.staleness)  # A copy: its thread may change it.
        return dict(sorted(total.items()))

    def _slowest(self) -> float:
        """Return the newest step applied to all tables, without `geo`; infinity without any."""
        newest = (
            min(served.applied.values())
            for served in self._served.values()
            if served.push.declared and served.push.declared.moves != "differences"
        )
        return min(newest, default=math.inf)

    # For the hook.

    def messages(self) -> Iterator[WorkerMessage]:
        """Yield the messages to handle in the order of their arrival, until all workers drain."""
        open_workers = {
            (served.push.id, worker)
            for served in self._served.values()
            for worker in served.push.sources
        }
        while open_workers:
            served, message, kind, wanted = self._arriving.next(open_workers)
            match kind:
                case MessageKind.PUSH if served.round is not None:
                    yield from self._round(served, message, served.round)
                case MessageKind.PUSH:
                    if message.share:
                        yield message
                        self._applied(served, message)
                    self._advance(served, message.worker, message.step)
                    if is_answered(kind, served.pull):
                        yield self._to_answer(served, message)
                case MessageKind.REQUEST | MessageKind.ASK:
                    served.waiting.append((wanted, message))
                case MessageKind.DRAIN:
                    open_workers.remove((message.edge, message.worker))
                    served.drained.add(message.worker)
                    if wanted > served.applied[message.worker]:
                        # The worker has computed steps without a push after them.
                        self._advance(served, message.worker, wanted)
                    if is_answered(kind, served.pull):
                        served.waiting.append((ALL, message))
            yield from self._answerable(served)

    def answer(self, message: WorkerMessage, values: Sequence[Array]) -> None:
        """Answer a worker with the newest values of a table."""
        self._answer(self._by_answer[message.edge], message, (), values)

    def answer_rows(self, message: WorkerMessage, rows: Sequence[Array]) -> None:
        """Answer a worker with the rows that it has requested."""
        self._answer(self._by_answer[message.edge], message, (), rows)

    def add_to_sums(self, message: WorkerMessage) -> None:
        """Add the gradients of a worker to the sums for all workers."""
        sums = self._served[message.edge].sums
        assert sums is not None
        sums.add(message)

    def send_sum(self, message: WorkerMessage) -> None:
        """Answer a worker with the sum of gradients since its last request."""
        served = self._by_answer[message.edge]
        assert served.sums is not None
        total = served.sums.take(message.worker)
        self._answer(served, message, (total.steps, total.newest), total.arrays)

    def _answer(
        self,
        served: ServedTable,
        message: WorkerMessage,
        numbers: Sequence[int],
        values: Sequence[Array],
    ) -> None:
        worker = message.worker
        kept = values if served.keeps else ()
        answer = Answer(served.count_others(worker), kept)
        served.answers.setdefault(worker, {})[served.version] = answer
        done = min(served.applied.values())
        head = header(served.version, served.horizon, done, *numbers)
        key = Key(served.pull.id, message.number)
        self._channel.send(worker, key, [head, *values])

    def _round(
        self,
        served: ServedTable,
        message: WorkerMessage,
        waiting: dict[str, WorkerMessage],
    ) -> Iterator[WorkerMessage]:
        """Collect a push; once all workers have pushed, yield the update and the answers."""
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

    def _applied(self, served: ServedTable, message: WorkerMessage) -> None:
        served.staleness[message.staleness] += 1
        served.counts[message.worker] += message.steps
        served.version += 1

    def _advance(self, served: ServedTable, worker: str, step: int) -> None:
        with self._changed:
            served.applied[worker] = step
            self._changed.notify_all()

    def _to_answer(self, served: ServedTable, message: WorkerMessage) -> WorkerMessage:
        edge = served.answering_edge
        return WorkerMessage(edge, message.worker, message.number, keys=message.keys)

    def _answerable(self, served: ServedTable) -> Iterator[WorkerMessage]:
        """Yield the requests that can be answered now."""
        limit = served.answered
        ready = [message for wanted, message in served.waiting if wanted <= limit]
        served.waiting = [each for each in served.waiting if each[0] > limit]
        for message in ready:
            yield self._to_answer(served, message)
