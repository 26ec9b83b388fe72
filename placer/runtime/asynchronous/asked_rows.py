"""A worker's side of asynchronous sparse tables that servers update.

A worker sends each server one stream of numbered messages, and the server handles them in
order. So the rows that a worker receives for a step contain all its own updates. See
`placer.runtime.exchange.worker_messages`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placer.channel.interface import Array, Key
from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import Mode
from placer.runtime.asynchronous.worker_end import WorkerEnd
from placer.runtime.exchange.row_exchange import RowExchange, message_of_keys
from placer.runtime.exchange.worker_messages import MessageKind, header
from placer.tables.sparse.batch_keys import BatchKeys


@dataclass(slots=True, eq=False)
class AskedRows(WorkerEnd):
    """A worker's side of the tables that are looked up together.

    Args:
        rows: the worker's side of edges that carry rows by key.
        ask_edge, give_edge, push_edge: the edges of keys, rows and gradients.
        mode: how the workers agree on updates.
    """

    rows: RowExchange
    ask_edge: Edge
    give_edge: Edge
    push_edge: Edge
    mode: Mode
    _number: int = 0  # number of the last message
    _asked: deque[int] = field(default_factory=deque)  # numbers of unanswered requests
    _versions: Sequence[int] = ()  # version of the rows in use, for each server
    _done: int = 0

    def send_keys(self, step: int, keys: Sequence[BatchKeys]) -> None:
        """Request the rows of the keys of a step. A server answers once it has applied
        the steps that the mode's bound requires."""
        bound = self.mode.bound
        wanted = 0 if bound is None else max(0, step - 1 - bound)
        head = header(MessageKind.ASK, wanted)
        self._number += 1
        self._asked.append(self._number)
        for i, server in enumerate(self.push_edge.targets):
            self._send(server, [head, *message_of_keys(self.ask_edge, keys, i)])

    def receive_rows(self, keys: Sequence[BatchKeys]) -> tuple[Array, ...]:
        """Wait for the rows of the oldest request; see `RowExchange.receive_rows`."""
        key = Key(self.give_edge.id, self._asked.popleft())
        arrays, heads = self.rows.receive_answers(self.give_edge, key, keys)
        self._versions = [int(head[0]) for head in heads]
        self._done = min(int(head[2]) for head in heads)
        return arrays

    def send_gradients(
        self,
        step: int,
        rows: tuple[int, int],
        keys: Sequence[BatchKeys],
        gradients: Sequence[Array],
    ) -> None:
        """Send the gradients of the rows of a step.

        Args:
            step: the step.
            rows: the number of this worker's rows, and of all rows of the batch. A worker
                without rows sends no gradients.
            keys: the keys of each table.
            gradients: the gradients of the rows of each table.
        """
        self._number += 1
        for i, server in enumerate(self.push_edge.targets):
            message = [header(MessageKind.PUSH, step, 1, self._versions[i], *rows)]
            if rows[0]:
                message += [
                    array[each.of_server(i)]
                    for array, each in zip(gradients, keys, strict=True)
                ]
            self._send(server, message)

    def drain(self, step: int, *, ends: bool = False) -> None:
        self._number += 1
        for server in self.push_edge.targets:
            self._send(server, [header(MessageKind.DRAIN, step)])
        # Requested ahead: the next step must use rows from after the drain.
        while self._asked:
            key = Key(self.give_edge.id, self._asked.popleft())
            for server in self.give_edge.sources:
                self.rows.channel.receive(server, key)

    def resume(self, steps: Mapping[str, int]) -> None:
        self._done = min(steps.values())

    @property
    def horizon(self) -> int:
        return self._done

    @property
    def asked_rows(self) -> AskedRows:
        return self

    def _send(self, server: str, message: Sequence[Array]) -> None:
        self.rows.channel.send(server, Key(self.push_edge.id, self._number), message)
