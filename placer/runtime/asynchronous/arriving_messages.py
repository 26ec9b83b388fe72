"""Reads the messages of workers to a server of asynchronous tables, and checks their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from placer.channel.interface import Array, Channel, Key, Piece
from placer.errors import RunError
from placer.plan.plan import Edge
from placer.runtime.asynchronous.recorded_order import ALL_EDGES, TAKE, Order
from placer.runtime.asynchronous.served_table import ServedTable
from placer.runtime.exchange.worker_messages import (
    HEADER_SIZE,
    MessageKind,
    WorkerMessage,
    join_flat,
    malformed_on,
)
from placer.tables.key_sums import KeyPart

ReadKeys = Callable[[Edge, str, Sequence[Array]], Sequence[KeyPart]]


class ArrivingMessages:
    """The messages of workers to a server, in the order in which it handles them.

    Args:
        channel: the node's channel.
        served: the tables, by the number of the edge on which workers push.
        order: records the order of the messages, or replays it.
        read_keys: returns the keys in a worker's message on an edge of keys.
    """

    def __init__(
        self,
        channel: Channel,
        served: Mapping[int, ServedTable],
        order: Order,
        read_keys: ReadKeys | None,
    ) -> None:
        self._channel, self._served = channel, served
        self._order, self._read_keys = order, read_keys

    def next(
        self, open_workers: set[tuple[int, str]]
    ) -> tuple[ServedTable, WorkerMessage, MessageKind, int]:
        """Wait for the next message of these workers, on these edges.

        Returns:
            The table; the message; its kind; and a step. For a push or a drain, it is the
            worker's last step. For a request, it is the step that must be applied first.
        """
        addresses = [
            (worker, Key(edge, self._served[edge].received[worker] + 1))
            for edge, worker in sorted(open_workers)
        ]
        if self._order.replays:
            addresses = [self._next_recorded(open_workers)]
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
        served: ServedTable,
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
        self, served: ServedTable, worker: str, key: Key, pieces: Iterator[Piece]
    ) -> WorkerMessage:
        """Read the keys of a worker's request for rows. A worker has at most two open
        requests: it may request the rows of the next step before it pushes the
        gradients of the current step."""
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

    def _next_recorded(self, open_workers: set[tuple[int, str]]) -> tuple[str, Key]:
        """Return the address of the next message in the replayed order."""
        edge, worker = self._order.next(TAKE, ALL_EDGES)
        if (edge, worker) not in open_workers:
            raise RunError(
                f"the recorded order expects another message of {worker} on edge {edge},"
                " which has sent all its messages",
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
