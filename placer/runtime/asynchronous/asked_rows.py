"""A worker's end of sparse tables that servers update without lockstep.

What a worker sends a server is one stream of numbered messages, so that the server handles
them in their order: the rows that a step gets contain all of this worker's own updates. See
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
from placer.runtime.exchange.row_exchange import RowExchange
from placer.runtime.exchange.worker_messages import MessageKind, header
from placer.tables.sparse.batch_keys import BatchKeys


@dataclass(slots=True, eq=False)
class AskedRows(WorkerEnd):
    """A worker's end of the tables that are looked up together.

    Args:
        rows: the worker's end of the edges of rows by key.
        give_edge, push_edge: the edges of the rows and of their gradients.
        mode: how the workers agree on updates.
    """

    rows: RowExchange
    give_edge: Edge
    push_edge: Edge
    mode: Mode
    _number: int = 0  # of the last message
    _asked: deque[int] = field(default_factory=deque)  # messages without an answer yet
    _versions: Sequence[int] = ()  # of the rows in use, of each server
    _done: int = 0

    def send_keys(self, step: int, keys: Sequence[BatchKeys]) -> None:
        """Ask for the rows of the keys of a step; servers answer once the steps are
        applied that the mode wants."""
        bound = self.mode.bound
        wanted = 0 if bound is None else max(0, step - 1 - bound)
        head = header(MessageKind.ASK, wanted)
        self._number += 1
        self._asked.append(self._number)
        for i, server in enumerate(self.push_edge.targets):
            arrays = [array for each in keys for array in each.message_to(i)]
            self._send(server, [head, *arrays])

    def receive_rows(self, keys: Sequence[BatchKeys]) -> tuple[Array, ...]:
        """Wait for the rows of the keys that were sent first, of those without rows; see
        `RowExchange.receive_rows`."""
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
        """Send the gradients of the rows of a step. `rows` are those of this worker in
        the step, and of the batch. Without rows of its own a worker has no gradients."""
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
        """Tell the servers that `step` was the last one, be it that of the run or not."""
        self._number += 1
        for server in self.push_edge.targets:
            self._send(server, [header(MessageKind.DRAIN, step)])
        while ends and self._asked:  # rows of a step that there is not
            key = Key(self.give_edge.id, self._asked.popleft())
            for server in self.give_edge.sources:
                self.rows.channel.receive(server, key)

    def resume(self, steps: Mapping[str, int]) -> None:
        """Continue after the steps of workers."""
        self._done = min(steps.values())

    @property
    def horizon(self) -> int:
        """The newest step known up to which all steps of all workers are applied."""
        return self._done

    @property
    def asked_rows(self) -> AskedRows:
        return self

    def _send(self, server: str, message: Sequence[Array]) -> None:
        self.rows.channel.send(server, Key(self.push_edge.id, self._number), message)
