"""The calls of a node program that concern asynchronous tables.

A worker pulls and pushes, or merges and pushes differences. A server handles the messages of
workers in its hook `serve`, as does a worker that updates tables by itself.
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
    """The node's part in asynchronous tables: each worker updates them at its own pace.

    Attributes:
        position: where the node is.
        edges: the edges of the program, by number.
        tables: the tables of the node, by name.
        rates: the learning rates of the tables, and how workers agree on updates.
        shard: the rows of a step whose gradients the node computes.
        ends: the node's ends of tables that workers update, by the numbers of their edges.
        service: the node's tables that workers update, if it has any.
        arrived: the messages of other workers to this one, while its hook `serve` runs.
        is_short: whether all workers have drained before the last step of this server,
            so that it is not done.
    """

    position: Position
    edges: Mapping[int, Edge]
    tables: Mapping[str, ProgramTable]
    rates: LearningRates
    shard: RowShard = field(default_factory=lambda: RowShard((0,), 1))
    ends: Mapping[int, WorkerEnd] = field(default_factory=dict)
    service: Service | None = None
    arrived: Sequence[WorkerMessage] = ()
    is_short: bool = field(default=False, init=False)

    def pull(self, edge: int, kind: type[Any] | None = None) -> Any:
        """Return the newest parameters that a server has sent.

        This waits for the first ones, and as the mode of the table says: with
        `max_staleness`, until the steps of all workers up to a certain one are applied.

        Args:
            edge: the number of the edge.
            kind: the NamedTuple class of the table.

        Returns:
            A tuple with one array per value of the edge; or a value of the class.

        Example:
            p = node.pull(PARAMETERS_FROM_PS, Dense)
        """
        arrays = self.ends[edge].pull(self.position.step)
        return tuple(arrays) if kind is None else fill_tree(kind, arrays)

    def push(self, edge: int, *values: Any) -> None:
        """Send the gradients of this worker to servers, or to all workers, in the
        background.

        This waits only while too many steps wait to be sent: `queue` of the mode.

        Args:
            edge: the number of the edge.
            values: one array per value of the edge, in its order, NamedTuples of them,
                or a part by `node.cut`.

        Raises:
            RunError: if the elements are not those that the edge sends.

        Example:
            node.push(GRADIENTS_TO_PS, g)
        """
        # Waits for the gradients: parameters that the next step pulls are newer then.
        planned = self.edges[edge].values
        arrays = [
            array_to_send(value, each)
            for value, each in zip(leaves(values), planned, strict=True)
        ]
        rows = self.position.own_rows(self.shard), self.position.count
        self.ends[edge].push(self.position.step, rows, arrays)

    def merge(self, edge: int) -> None:
        """Add to the worker's own values what a server has answered to the last difference,
        if that is there; with an outer optimizer wait for it, and take its values.

        Args:
            edge: the number of the edge.

        Example:
            node.merge(PARAMETERS_FROM_PS)
        """
        self.ends[edge].merge(self.position.step)

    def push_delta(self, edge: int) -> None:
        """Send how far the worker's own values have moved to a server, in the background,
        if this step is one after which the mode says so.

        This waits only for the answer to the last difference.

        Args:
            edge: the number of the edge.

        Example:
            node.push_delta(DELTAS_TO_PS)
        """
        self.ends[edge].push_delta(self.position.step)

    def messages(self) -> Iterator[WorkerMessage]:
        """Return what workers send to the tables of a server, as it arrives, until all
        workers have pushed all that they have: before an evaluation, a checkpoint and
        the end of the run. On a worker that updates, return what has come before a step.

        Returns:
            An iterator over messages. The `edge` of one says what to do: to `answer` it,
            or to update a table from it.

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
        """Send the parameters of a table to the worker that a message is from.

        Args:
            message: a message of the table's edge to the workers.
            parameters: one array per block, or a value of the table's class.

        Example:
            node.answer(message, p)
        """
        self._service.answer(message, [np.asarray(each) for each in leaves(parameters)])

    def answer_rows(self, message: WorkerMessage, *rows: PartsOfRows) -> None:
        """Send the worker that a message is from the rows that it asks for.

        Args:
            message: the message with the keys.
            rows: the rows of each table of the edge.

        Example:
            node.answer_rows(message, rows)
        """
        self._service.answer_rows(message, [each.parts[0] for each in rows])

    def add_to_sums(self, message: WorkerMessage) -> None:
        """Add the gradients of one worker to the sums that this server keeps for all
        workers.

        Args:
            message: a message of the edge from the workers.

        Raises:
            RunError: for gradients that do not fit the plan.

        Example:
            node.add_to_sums(message)
        """
        self._service.add_to_sums(message)

    def send_sum(self, message: WorkerMessage) -> None:
        """Send the worker that a message is from the sum of the gradients of all workers
        since it has asked last.

        Args:
            message: a message of the edge to the workers.

        Example:
            node.send_sum(message)
        """
        self._service.send_sum(message)

    def pushed(
        self, table: str, message: WorkerMessage, kind: type[Any] | None = None
    ) -> Any:
        """Return the gradients of one worker.

        Args:
            table: the name of the table.
            message: a message of the table's edge from the workers.
            kind: the NamedTuple class of the table.

        Returns:
            A tuple with one array per block; or a value of the class.

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
        """Update a table by the gradients of one worker, chunk by chunk as they arrive,
        at the learning rate of the worker's step; or by the mean of the differences of all
        workers.

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
        """Wait until the current step of every worker is applied to the tables of this
        server that workers push to in each step, or all workers have drained. The hook
        `serve` applies it.

        Example:
            node.wait_for_workers()
        """
        if self.service is not None:
            self.is_short = not self.service.wait_for_step(self.position.step)

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
        """Return elements of the gradient of a block, corrected by how the parameters
        have changed since they were answered."""
        part = slice(start, start + gradient.size)
        now = self.tables[table].values()[block].reshape(-1)[part]
        base = message.base[block].reshape(-1)[part]
        strength = self.rates.modes[table].compensate
        assert strength is not None
        return compensate(gradient, now, base, strength / message.share)
