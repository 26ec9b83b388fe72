"""The calls of a node program that use asynchronous tables.

A worker pulls parameters and pushes gradients, or merges and pushes differences (`geo`).
A server handles the messages of workers in its hook `serve`. So does a worker with a
worker-side update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from placer.channel.interface import Array
from placer.place.layouts.partition import RowShard
from placer.plan.plan import Edge
from placer.runtime.asynchronous.pushed import join_pieces
from placer.runtime.asynchronous.service import Service
from placer.runtime.asynchronous.worker_end import WorkerEnd
from placer.runtime.exchange.nested_tuples import fill_tree, leaves
from placer.runtime.exchange.parts import array_to_send
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.runtime.node.learning_rates import LearningRates
from placer.runtime.node.position import Position
from placer.tables.delay_compensation import compensate
from placer.tables.protocol import ProgramTable, StreamedTable

if TYPE_CHECKING:
    from placer.runtime.exchange.row_exchange import PartsOfRows


@dataclass(slots=True)
class AsynchronousCalls:
    """The calls on asynchronous tables, which each worker updates at its own pace.

    Attributes:
        position: the current step and batch of the node.
        edges: the edges of the program, by number.
        tables: the tables of the node, by name.
        rates: the learning rates and update modes of the tables.
        shard: the node's share of a step's rows; its gradients cover these rows.
        ends: the `WorkerEnd` of each asynchronous table, by edge number.
        service: the server side of asynchronous tables; None on other nodes.
        arrived: messages of other workers to this worker, while its hook `serve` runs.
        step_skipped: whether this server skips its last step, because all workers have
            drained before it.
    """

    position: Position
    edges: Mapping[int, Edge]
    tables: Mapping[str, ProgramTable]
    rates: LearningRates
    shard: RowShard = field(default_factory=lambda: RowShard((0,), 1))
    ends: Mapping[int, WorkerEnd] = field(default_factory=dict)
    service: Service | None = None
    arrived: Sequence[WorkerMessage] = ()
    step_skipped: bool = field(default=False, init=False)

    def pull(self, edge: int, kind: type[Any] | None = None) -> Any:
        """Return the newest parameters received from a server.

        The first call waits for the initial parameters. With `max_staleness`, each call also
        waits until the servers have applied the workers' gradients up to a certain step.

        Args:
            edge: the number of the edge.
            kind: the NamedTuple class of the table.

        Returns:
            A tuple with one array per value of the edge, or an instance of `kind`.

        Example:
            p = node.pull(PARAMETERS_FROM_PS, Dense)
        """
        arrays = self.ends[edge].pull(self.position.step)
        return tuple(arrays) if kind is None else fill_tree(kind, arrays)

    def push(self, edge: int, *values: Any) -> None:
        """Send this worker's gradients to servers, or to all workers, in the background.

        This waits only if the queue of unsent steps is full (`queue` of the mode).

        Args:
            edge: the number of the edge.
            values: one array per value of the edge, in its order, NamedTuples of arrays,
                or parts by `node.cut`.

        Raises:
            RunError: if a part is not the range that the edge sends.

        Example:
            node.push(GRADIENTS_TO_PS, g)
        """
        # This waits until the gradients are computed, so the next step pulls newer parameters.
        planned = self.edges[edge].values
        arrays = [
            array_to_send(value, each)
            for value, each in zip(leaves(values), planned, strict=True)
        ]
        rows = self.position.own_rows(self.shard), self.position.count
        self.ends[edge].push(self.position.step, rows, arrays)

    def merge(self, edge: int) -> None:
        """Add the server's answer to the last difference to the worker's own values.

        An answer that has not arrived yet is skipped. With an outer optimizer, wait for the
        answer and replace the worker's values by it.

        Args:
            edge: the number of the edge.

        Example:
            node.merge(PARAMETERS_FROM_PS)
        """
        self.ends[edge].merge(self.position.step)

    def push_delta(self, edge: int) -> None:
        """Send the worker's delta to a server, in the background, if it is due in this step.

        The delta is the change of the worker's values since the last exchange. This waits
        only for the answer to the previous delta.

        Args:
            edge: the number of the edge.

        Example:
            node.push_delta(DELTAS_TO_PS)
        """
        self.ends[edge].push_delta(self.position.step)

    def messages(self) -> Iterator[WorkerMessage]:
        """Iterate over the messages of workers to asynchronous tables.

        On a server, messages are yielded as they arrive, until every worker has drained:
        before an evaluation, before a checkpoint and at the end of the run. On a worker with
        a worker-side update, these are the messages received before the current step.

        Returns:
            An iterator over messages. The `edge` of a message tells the program whether to
            `answer` it or to update a table from it.

        Example:
            for message in node.messages():
                if message.edge == PARAMETERS_TO_WORKERS:
                    node.answer(message, node.parameters("dense", Dense))
                elif message.edge == GRADIENTS_FROM_WORKERS:
                    node.update_from("dense", message)
        """
        if self.service is None:
            return iter(self.arrived)
        return self.service.messages()

    def answer(self, message: WorkerMessage, *parameters: Any) -> None:
        """Send the parameters of a table to the worker that sent a message.

        Args:
            message: a message of the table's edge to the workers.
            parameters: one array per block, or an instance of the table's class.

        Example:
            node.answer(message, p)
        """
        self._service.answer(message, [np.asarray(each) for each in leaves(parameters)])

    def answer_rows(self, message: WorkerMessage, *rows: PartsOfRows) -> None:
        """Send the requested rows to the worker that sent a message.

        Args:
            message: the message with the keys.
            rows: the rows of each table of the edge.

        Example:
            node.answer_rows(message, rows)
        """
        self._service.answer_rows(message, [each.parts[0] for each in rows])

    def add_to_sums(self, message: WorkerMessage) -> None:
        """Add one worker's gradients to the gradient sums that this server keeps.

        Args:
            message: a message of the edge from the workers.

        Raises:
            RunError: for gradients that do not fit the plan.

        Example:
            node.add_to_sums(message)
        """
        self._service.add_to_sums(message)

    def send_sum(self, message: WorkerMessage) -> None:
        """Send a worker the sum of all workers' gradients since its last request.

        Args:
            message: the worker's request, a message of the edge to the workers.

        Example:
            node.send_sum(message)
        """
        self._service.send_sum(message)

    def pushed(
        self, table: str, message: WorkerMessage, kind: type[Any] | None = None
    ) -> Any:
        """Return the gradients that one worker has pushed.

        Args:
            table: the name of the table.
            message: a message of the table's edge from the workers.
            kind: the NamedTuple class of the table.

        Returns:
            A tuple with one array per block, or an instance of `kind`.

        Raises:
            RunError: for gradients that do not fit the blocks.

        Example:
            g = node.pushed("dense", message, Dense)
        """
        values = self.edges[message.edge].values
        arrays = join_pieces(message, values, self.tables[table].dtype)
        if self.rates.modes[table].compensate is not None:
            target = cast(StreamedTable, self.tables[table])
            for value, array in zip(values, arrays, strict=True):
                block = target.block_of_gradient[value.result]
                flat = array.reshape(-1)
                flat[...] = self._compensated(table, message, block, 0, flat)
        return tuple(arrays) if kind is None else fill_tree(kind, arrays)

    def update_from(self, table: str, message: WorkerMessage) -> None:
        """Update a table from a worker's message, chunk by chunk as its parts arrive.

        The message holds the gradients of one worker; the learning rate is that of the
        worker's step. With an outer optimizer it holds the differences of all workers, and
        the update uses their mean.

        Args:
            table: the name of the table, which is in host memory.
            message: a message of the table's edge from the workers.

        Raises:
            RunError: for gradients that do not fit the blocks.

        Example:
            node.update_from("dense", message)
        """
        target = cast(StreamedTable, self.tables[table])
        rate, mode = self.rates.of(table, message), self.rates.modes[table]
        values = self.edges[message.edge].values
        scale = 1 / len(message.parts)
        dtype = self.tables[table].dtype
        with target.update_in_chunks(learning_rate=rate, scale=scale) as update:
            for index, start, parts in message.chunks(values):
                block = target.block_of_gradient[values[index].result]
                parts = [part.astype(dtype, copy=False) for part in parts]
                if mode.compensate is not None:
                    (part,) = parts
                    parts = [self._compensated(table, message, block, start, part)]
                update.apply(block, start, parts)

    def wait_for_workers(self) -> None:
        """Wait until every worker's current step is applied to this server's tables.

        This concerns the tables that workers push to in each step; the hook `serve` applies
        the pushes. The wait also ends when all workers have drained.

        Example:
            node.wait_for_workers()
        """
        if self.service is not None:
            self.step_skipped = not self.service.wait_for_step(self.position.step)

    @property
    def _service(self) -> Service:
        assert self.service is not None
        return self.service

    def _compensated(
        self,
        table: str,
        message: WorkerMessage,
        block: int,
        start: int,
        gradient: Array,
    ) -> Array:
        """Return part of a gradient, compensated for later changes of the parameters."""
        part = slice(start, start + gradient.size)
        now = self.tables[table].values()[block].reshape(-1)[part]
        base = message.base[block].reshape(-1)[part]
        strength = self.rates.modes[table].compensate
        assert strength is not None
        return compensate(gradient, now, base, strength / message.share)
