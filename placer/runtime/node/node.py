"""`Node`: the calls that node programs consist of.

A node program is a Python module with jitted functions and a function `step(node)`,
`evaluate(node)` if the spec has an evaluation, and `predict(node)` if it has outputs:

    def step(node):
        image, label = node.read("image", "label")
        p = node.receive(1, Dense)
        loss, g = forward_backward(p, image, label)
        node.send(2, g)
        node.record(loss=loss)

`Dense` is a NamedTuple with the parameters of a table, or their gradients.

The numbers of edges and the names of tables are those of the plan. Every call may raise
`Aborted` once the run has failed on another node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from placer.channel.interface import Array, Key
from placer.errors import RunError
from placer.place.layouts.partition import RowShard
from placer.plan.plan import NodePhase
from placer.plan.settings.data.sources import POSITION
from placer.runtime.asynchronous.backup_workers import FirstWorkers, NewestStep
from placer.runtime.asynchronous.delta_exchange import DeltaExchange
from placer.runtime.asynchronous.peer_gradients import PeerGradients
from placer.runtime.asynchronous.pulled_sums import PulledSums
from placer.runtime.asynchronous.pulled_versions import PulledVersions
from placer.runtime.asynchronous.pushed import join_pieces
from placer.runtime.asynchronous.recorded_order import ALL_EDGES, DRAIN, Order
from placer.runtime.asynchronous.replicas import Replicas
from placer.runtime.asynchronous.service import Service
from placer.runtime.batches.batches import Batches
from placer.runtime.exchange.devices import Devices
from placer.runtime.exchange.exchange import Exchange
from placer.runtime.exchange.nested_tuples import fill_tree, leaves, like_tree
from placer.runtime.exchange.sent_back import SentBack
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.runtime.node.learning_rates import LearningRates
from placer.runtime.node.microbatches import Microbatches
from placer.tables.delay_compensation import compensate
from placer.tables.protocol import ProgramTable, StreamedTable

if TYPE_CHECKING:
    from placer.runtime.asynchronous.asked_rows import AskedRows
    from placer.runtime.exchange.row_exchange import AskedKeys, PartsOfRows
    from placer.runtime.node.row_calls import RowCalls
    from placer.tables.key_sums import KeySums
    from placer.tables.sparse.batch_keys import BatchKeys

T = TypeVar("T")
WorkerEnd: TypeAlias = (
    "PulledVersions | PulledSums | PeerGradients | DeltaExchange | AskedRows"
)
"""A worker's end of a table without lockstep."""


@dataclass(slots=True)
class Node(Microbatches):
    """One node of a run, as its program sees it.

    Arrays that the calls return are numpy arrays in host memory, which jitted functions
    on the CPU read without a copy, or JAX arrays on the node's devices. Programs must
    not write to them.

    Attributes:
        name: the name of the node, such as `worker:0`.
        exchange: the node's end of all edges.
        tables: the tables of the node, by name.
        rates: the learning rates of the tables.
        training: the global batches of training.
        evaluating: the global batches of the evaluation, if there is one.
        phases: what the plan says about the node in training steps and in evaluations.
        on_record: receives recorded values, and the number of rows that a plain number
            among them counts by.
        devices: the devices of the node.
        on_outputs: called after each batch of an evaluation or a prediction, with its
            number and the outputs of the batch, once the next batch was started.
        shard: the rows of a step that the gradients of the node are of, without lockstep.
        communicators: the node's ends of tables that workers update without lockstep, by
            the numbers of their edges.
        updates: those of them whose tables this worker updates by itself.
        replicas: the tables that each worker updates by itself.
        service: the node's tables that workers update without lockstep, if it has any.
        first_workers: a server's part in steps that do not wait for all workers.
        newest: a worker's part in such steps.
        has_own_steps: whether the node does not wait for other workers in each step:
            a worker, or its companion.
        local_tables: the names of tables with values of this worker's own.
        serve: the hook that handles the messages for these tables.
        order: records or replays the order of what happens without lockstep.
        sent_back: the edges of each table whose parameters this node sends as it updates
            them, for the next step, with the indices of their blocks.
        expected: the edges whose parameters come back for the next step while this node
            still computes this one.
        is_short: whether all workers have drained before the last step of this server,
            so that it is not done.
        position, turns: as in `Microbatches`.
        row_calls: the calls on rows of sparse tables, if the plan has such tables.
    """

    name: str
    exchange: Exchange
    tables: Mapping[str, ProgramTable]
    rates: LearningRates
    training: Batches
    evaluating: Batches | None
    phases: tuple[NodePhase, NodePhase | None]
    on_record: Callable[[Mapping[str, Any], int], None]
    devices: Devices
    on_outputs: Callable[[int, Mapping[str, Any]], None] = lambda batch, outputs: None
    shard: RowShard = field(default_factory=lambda: RowShard((0,), 1))
    communicators: Mapping[int, WorkerEnd] = field(default_factory=dict)
    updates: Sequence[PulledSums | PeerGradients] = ()
    replicas: Replicas | None = None
    service: Service | None = None
    first_workers: FirstWorkers | None = None
    newest: NewestStep | None = None
    has_own_steps: bool = False
    local_tables: frozenset[str] = frozenset()
    serve: Callable[[Node], None] | None = None
    order: Order = field(default_factory=Order)
    sent_back: Mapping[str, Sequence[tuple[int, Sequence[int]]]] = field(
        default_factory=dict
    )
    expected: Sequence[int] = ()
    is_short: bool = False
    row_calls: RowCalls | None = None
    _new_states: dict[str, list[Array]] = field(default_factory=dict, init=False)
    _was_sent: Mapping[int, int] = field(default_factory=dict, init=False)
    _arrived: Sequence[WorkerMessage] = field(default=(), init=False)
    _outputs: Mapping[str, Any] = field(default_factory=dict, init=False)
    _recorded: tuple[Any, ...] = field(default=(), init=False)
    _trained: int = field(default=0, init=False)  # the last training step

    # The calls of node programs.

    @property
    def count(self) -> int:
        """The number of rows of the current global batch."""
        return self.position.count

    @property
    def rows(self) -> int:
        """The number of rows of the current microbatch, on all nodes together; those of
        the batch outside of one."""
        return self.position.rows

    @property
    def share(self) -> float:
        """The part of the rows of the current global batch that belongs to this node."""
        return self._own_rows / self.position.count

    def read(self, *values: str) -> Any:
        """Read this node's rows of the current global batch, or of the microbatch.

        Args:
            values: names of inputs, as in the spec's `inputs`.

        Returns:
            One array per name, [rows, *shape] and of the input's dtype; a tuple if
            there are several names. The input `batch.position` is uint32[rows, 2]: the
            step and each row's number in the global batch.

        Raises:
            RunError: if the code of a `python:` source raises.
            DataError: for a row of a `python:` source that does not fit its input.

        Example:
            image, label = node.read("image", "label")
        """
        position = self.position
        batches, phase = self._batches, self.phases[position.evaluation]
        assert phase is not None
        rows_by_shard: dict[RowShard, Mapping[str, Array]] = {}
        arrays = []
        reads = {read.value: read for read in phase.reads}
        for value in values:
            read = reads[value]
            if read.input == POSITION:
                ranges = position.own_ranges(read.shard)
                rows = [np.arange(low, high) for low, high in ranges]
                arrays.append(_positions(position.step, _concatenate(rows)))
                continue
            if read.shard not in rows_by_shard:
                rows_by_shard[read.shard] = batches.take(
                    (position.epoch, position.batch),
                    read.shard,
                    position.microbatch,
                    position.parts,
                )
            arrays.append(rows_by_shard[read.shard][read.input])
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def parameters(self, table: str, kind: type[T]) -> T:
        """Return the current values of a table.

        Args:
            table: the name of the table.
            kind: the NamedTuple class of the table, with a field for each layer.

        Returns:
            A value of this class. Its arrays are read-only, one per block, of its shape
            and of the table's dtype. In a table that is updated in place, the next
            update overwrites them.

        Raises:
            RunError: after an update that was interrupted.

        Example:
            p = node.parameters("dense", Dense)
        """
        return fill_tree(kind, self.tables[table].values())

    def memcpy_h2d(self, *values: Any, to: str, rows: int = 0) -> tuple[Any, ...]:
        """Copy arrays from host memory to devices, in the background.

        Args:
            values: arrays of any shape and dtype, or NamedTuples of arrays.
            to: the devices, such as `gpu:0` or `gpu:0-7`.
            rows: how many of the first arrays are split over the devices by their rows;
                every device gets a copy of the others.

        Returns:
            One JAX array per value, in the same NamedTuples.

        Example:
            image, p = node.memcpy_h2d(image, p, to="gpu:0-7", rows=1)
        """
        arrays = self.devices.copy_to_devices(tuple(leaves(values)), to, rows)
        return like_tree(values, arrays)

    def memcpy_d2d(self, *values: Any, to: str, rows: int = 0) -> tuple[Any, ...]:
        """Copy arrays from devices to other devices, in the background.

        Args:
            values: JAX arrays of any shape and dtype, or NamedTuples of them.
            to: the devices, such as `gpu:0` or `gpu:0-7`.
            rows: how many of the first arrays are split over the devices by their rows;
                every device gets a copy of the others.

        Returns:
            One JAX array per value, in the same NamedTuples.

        Example:
            (h2,) = node.memcpy_d2d(h2, to="gpu:1")
        """
        arrays = self.devices.copy_to_devices(tuple(leaves(values)), to, rows)
        return like_tree(values, arrays)

    def memcpy_d2h(self, *values: Any, wait: bool = False) -> tuple[Any, ...]:
        """Copy arrays from devices to host memory, in the background.

        Args:
            values: JAX arrays of any shape and dtype, or NamedTuples of them.
            wait: whether to wait for the copies, because a function on the CPU uses
                them. Other calls of the node wait by themselves.

        Returns:
            One array per value, in the same NamedTuples.

        Example:
            loss, accuracy, g = node.memcpy_d2h(loss, accuracy, g)
        """
        return like_tree(values, self.devices.copy_to_host(tuple(leaves(values)), wait))

    def update(
        self,
        table: str,
        gradients: Any,
        scale: Any = None,
        message: WorkerMessage | None = None,
    ) -> None:
        """Update a table by the optimizer's rule, at this step's learning rate.

        Args:
            table: the name of the table.
            gradients: a value of the table's class, with the gradient of each block.
            scale: a factor of the gradients, such as that of clipping: one for all, or
                a tuple with one per block; None for 1.
            message: the worker's message with these gradients, whose step decides the
                learning rate; None in lockstep.

        Raises:
            RunError: for gradients that do not fit the blocks.

        Example:
            node.update("dense", g, scale=clip_scale)
        """
        if self._lacks_rows(table):
            return
        rate = self.rates.of(table, message)
        arrays = tuple(leaves(gradients))
        self.tables[table].update(arrays, learning_rate=rate, scale=scale)

    def update_from_edges(self, table: str, *edges: int) -> None:
        """Update a table by the gradients of edges, chunk by chunk as they arrive.

        The gradients of all sources of an edge are summed in the order of the sources.
        They are never joined in a buffer of their own.

        Args:
            table: the name of the table, which is in host memory.
            edges: the numbers of the edges; together they carry one gradient per block.

        Raises:
            RunError: for messages that do not fit the plan or the blocks, for a lost
                peer, and for a passed deadline.

        Example:
            node.update_from_edges("dense", 2, 3)
        """
        # Only tables in host memory are updated from edges. `isinstance` of a protocol
        # takes microseconds in each update, so it does not check that.
        target = cast(StreamedTable, self.tables[table])
        rate = self.rates.of(table)
        sent_back = self._begin_to_send_back(table)
        with target.update_in_chunks(learning_rate=rate) as update:
            for edge in edges:
                for name, start, views in self.exchange.receive_chunks(self._key(edge)):
                    block = target.block_of_gradient[name]
                    update.apply(block, start, views)
                    if sent_back is not None:
                        sent_back.written(block, start + views[0].size)
        if sent_back is not None:
            sent_back.end()

    def _begin_to_send_back(self, table: str) -> SentBack | None:
        """Begin to send the values of a table that the next step sends, if there is
        such a step."""
        edges = self.sent_back.get(table, ())
        if not edges or self.position.is_last:
            return None
        values = self.tables[table].values()
        step = self.position.step + 1
        self._was_sent = {**self._was_sent, **{edge: step for edge, _ in edges}}
        return SentBack(self.exchange, edges, values, step)

    def compute_directions(self, table: str, gradients: T, scale: Any = None) -> T:
        """Compute update directions: the first phase of a two-phase rule.

        The norms of whole parameters and directions then give the trust ratios for
        `apply_directions`.

        Args:
            table: the name of the table.
            gradients: a value of the table's class, with the gradient of each block.
            scale: a factor of the gradients, as in `update`.

        Returns:
            A value of the table's class, with the update direction of each block.

        Raises:
            RunError: for gradients that do not fit the blocks.

        Example:
            direction = node.compute_directions("dense", g)
        """
        if self._lacks_rows(table):
            return gradients
        arrays = tuple(leaves(gradients))
        directions = self.tables[table].compute_directions(arrays, scale=scale)
        return like_tree(gradients, directions)

    def apply_directions(
        self, table: str, ratios: Any, message: WorkerMessage | None = None
    ) -> None:
        """Apply the update directions of `compute_directions`: the second phase of a
        two-phase rule.

        Args:
            table: the name of the table.
            ratios: a value of the table's class, with the trust ratio of each block's
                parameter, a scalar.
            message: as in `update`.

        Example:
            node.apply_directions("dense", ratios)
        """
        if self._lacks_rows(table):
            return
        rate = self.rates.of(table, message)
        arrays = tuple(leaves(ratios))
        self.tables[table].apply_directions(arrays, learning_rate=rate)

    def store(self, table: str, values: Any) -> None:
        """Replace the values of a table by values that the program computed, such as
        the running statistics of batch normalization. With backup workers, values of a
        step that does not take this worker's gradients are dropped.

        Args:
            table: the name of the table.
            values: a value of the table's class, with the new value of each block.

        Raises:
            RunError: for values that do not fit the blocks.

        Example:
            node.store("state", new)
        """
        self._new_states[table] = [np.asarray(value) for value in leaves(values)]
        if self.newest is None:
            self._keep_new_states()

    def send(self, edge: int, *values: Any) -> None:
        """Send the values of an edge to the nodes that need them.

        This waits only if a peer is so far behind that it has no credit left. The
        arrays must not change until the message has been received.

        Args:
            edge: the number of the edge.
            values: one array per value of the edge, in its order, or NamedTuples of
                them; None for a value that this node has no part of.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.send(2, g)
        """
        position = self.position
        if self._was_sent.get(edge) == position.step and not position.evaluation:
            return  # as the step before has updated them
        self.exchange.send(self._key(edge), tuple(leaves(values)), position.rows)
        is_bucket = self.exchange.edges[edge].bucket is not None
        if is_bucket and not position.is_last:
            # Servers send parameters of the next step back from now on.
            for expected in self.expected:
                self.exchange.expect(Key(expected, position.step + 1))

    def receive(self, edge: int, kind: type[Any] | None = None) -> Any:
        """Wait for the values of an edge.

        The parts that several nodes send are concatenated or added, as the plan says.

        Args:
            edge: the number of the edge.
            kind: the NamedTuple class of a table, for an edge with a value for each of
                its blocks.

        Returns:
            A tuple with one array per value of the edge, of the shape and dtype in the
            plan; or a value of the class.

        Raises:
            RunError: for messages that do not fit the plan, for a lost peer, and for a
                passed deadline.

        Example:
            p = node.receive(1, Dense)
        """
        arrays = self.exchange.receive(self._key(edge), self.position.rows)
        return arrays if kind is None else fill_tree(kind, arrays)

    # Steps with backup workers.

    def offer(self, edge: int, *values: Any) -> None:
        """Send the values of an edge to each worker that begins this step, when it does.

        Args:
            edge: the number of the edge.
            values: one array per value of the edge, in its order, or NamedTuples of
                them.

        Example:
            node.offer(1, p)
        """
        assert self.first_workers is not None
        self.first_workers.offer(edge, tuple(leaves(values)))

    def sum_of_first(self, edge: int, kind: type[Any] | None = None) -> Any:
        """Wait for the gradients of the workers that are first in this step, and add
        them up in the order of the nodes.

        The sums are multiplied by the rows of the step over the rows of these workers.

        Args:
            edge: the number of the edge.
            kind: the NamedTuple class of the table.

        Returns:
            A tuple with one array per value of the edge; or a value of the class.

        Raises:
            RunError: for messages that do not fit the plan, for a lost peer, and for a
                passed deadline.

        Example:
            g = node.sum_of_first(3, Dense)
        """
        assert self.first_workers is not None
        arrays = self.first_workers.sum_of_first(edge)
        return arrays if kind is None else fill_tree(kind, arrays)

    # Tables that workers update without lockstep.

    def pull(self, edge: int, kind: type[Any] | None = None) -> Any:
        """Return the newest parameters that a server has sent.

        This waits for the first ones, and as the mode of the table says: with
        `max_staleness`, until the steps of all workers up to a certain one are applied.

        Args:
            edge: the number of the edge.
            kind: the NamedTuple class of the table.

        Returns:
            A tuple with one array per value of the edge; or a value of the class.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            p = node.pull(1, Dense)
        """
        arrays = cast(PulledVersions, self.communicators[edge]).pull(self.position.step)
        return tuple(arrays) if kind is None else fill_tree(kind, arrays)

    def push(self, edge: int, *values: Any) -> None:
        """Send the gradients of this worker to servers, or to all workers, in the
        background.

        This waits only while too many steps wait to be sent: `queue` of the mode.

        Args:
            edge: the number of the edge.
            values: one array per value of the edge, in its order, or NamedTuples of
                them.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.push(2, g)
        """
        # Waits for the gradients: parameters that the next step pulls are newer then.
        arrays = [np.asarray(value) for value in leaves(values)]
        edge_values = self.exchange.edges[edge].values
        arrays = [
            array.reshape(-1)[each.start : each.stop]
            if each.start is not None
            else array
            for array, each in zip(arrays, edge_values, strict=True)
        ]
        communicator = cast(PulledVersions, self.communicators[edge])
        communicator.push(self.position.step, self._rows_of_step, arrays)

    def merge(self, edge: int) -> None:
        """Add to the worker's own values what a server has answered to the last difference,
        if that is there; with an outer optimizer wait for it, and take its values.

        Args:
            edge: the number of the edge.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.merge(1)
        """
        self._delta_exchange(edge).merge(self.position.step)

    def push_delta(self, edge: int) -> None:
        """Send how far the worker's own values have moved to a server, in the background,
        if this step is one after which the mode says so.

        This waits only for the answer to the last difference.

        Args:
            edge: the number of the edge.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.push_delta(3)
        """
        self._delta_exchange(edge).push_delta(self.position.step)

    def messages(self) -> Iterator[WorkerMessage]:
        """Return what workers send to the tables of a server, as it arrives, until all
        workers have pushed all that they have: before an evaluation, a checkpoint and
        the end of the run. On a worker that updates, return what has come before a step.

        Returns:
            An iterator over messages. The `edge` of one says what to do: to `answer` it,
            or to update a table from it.

        Raises:
            RunError: for a message that does not fit the plan, a lost peer, and a passed
                deadline.

        Example:
            for message in node.messages():
                match message.edge:
                    case 1:
                        node.answer(message, node.parameters("dense", Dense))
                    case 2:
                        node.update_from("dense", message)
        """
        if self.service is None:
            return iter(self._arrived)
        return self.service.messages()

    def answer(self, message: WorkerMessage, *parameters: Any) -> None:
        """Send the parameters of a table to the worker that a message is from.

        Args:
            message: a message of the table's edge to the workers.
            parameters: one array per block, or a value of the table's class.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.answer(message, p)
        """
        assert self.service is not None
        self.service.answer(message, [np.asarray(each) for each in leaves(parameters)])

    def add_to_sums(self, message: WorkerMessage) -> None:
        """Add the gradients of one worker to the sums that this server keeps for all
        workers.

        Args:
            message: a message of the edge from the workers.

        Raises:
            RunError: for gradients that do not fit the plan, for a lost peer, and for a
                passed deadline.

        Example:
            node.add_to_sums(message)
        """
        assert self.service is not None
        self.service.add_to_sums(message)

    def send_sum(self, message: WorkerMessage) -> None:
        """Send the worker that a message is from the sum of the gradients of all workers
        since it has asked last.

        Args:
            message: a message of the edge to the workers.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.send_sum(message)
        """
        assert self.service is not None
        self.service.send_sum(message)

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
            RunError: for gradients that do not fit the blocks, for a lost peer, and for
                a passed deadline.

        Example:
            g = node.pushed("dense", message, Dense)
        """
        values = self.exchange.edges[message.edge].values
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
            RunError: for gradients that do not fit the blocks, for a lost peer, and for
                a passed deadline.

        Example:
            node.update_from("dense", message)
        """
        target = cast(StreamedTable, self.tables[table])
        rate, mode = self.rates.of(table, message), self.rates.modes[table]
        values = self.exchange.edges[message.edge].values
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
        server that workers push to in each step, or all workers have drained; the hook
        `serve` applies it."""
        if self.service is not None:
            self.is_short = not self.service.wait_for_step(self.position.step)

    def send_and_recv(self, edge: int, *values: Any, back: int) -> tuple[Array, ...]:
        """Send values to a heter worker, and wait for the results of its task.

        Args:
            edge: the number of the edge to the heter worker.
            values: one array per value of the edge.
            back: the number of the edge that returns the results.

        Returns:
            One array per value of the edge `back`.

        Raises:
            RunError: as in `send` and `receive`.

        Example:
            (deep,) = node.send_and_recv(3, embedded, back=4)
        """
        self.send(edge, *values)
        results: tuple[Array, ...] = self.receive(back)
        return results

    def slice_gradient(self, gradient: Any, start: int, stop: int) -> Array:
        """Return one block of a gradient.

        Args:
            gradient: an array of any shape.
            start, stop: the range of elements of the array, flattened in C order.

        Returns:
            A flat array of shape [stop - start], a view if possible.

        Example:
            h1_w_block1_grad = node.slice_gradient(h1_w_grad, 16384, 32768)
        """
        return np.asarray(gradient).reshape(-1)[start:stop]

    def assemble_parameter(self, *blocks: Any, shape: tuple[int, ...]) -> Array:
        """Join the blocks of a parameter.

        Args:
            blocks: the blocks in order, flat.
            shape: the shape of the parameter.

        Returns:
            The parameter. If the blocks were received, this copies nothing.

        Example:
            h1_w = node.assemble_parameter(
                h1_w_block0, h1_w_block1, shape=(64, 512)
            )
        """
        return self.exchange.assemble([np.asarray(block) for block in blocks], shape)

    def record(self, /, **metrics: Any) -> None:
        """Record this node's part of metrics, of a step or of a batch of an evaluation.

        This does not wait for values that are still being computed.

        Args:
            metrics: the statistic of each metric, by name.

        Raises:
            FloatingPointError: with `--debug-nans`, for a loss that is not finite.

        Example:
            node.record(loss=loss, accuracy=accuracy)
        """
        # numpy arrays may be parameters, which the next update overwrites, so they are
        # copied. JAX arrays never change.
        values = {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in metrics.items()
        }
        evaluation = self.position.evaluation
        if evaluation:
            self._recorded += tuple(values.values())
        self.on_record(values, self.position.count if evaluation else 1)

    def output(self, /, **outputs: Any) -> None:
        """Return this node's rows of outputs, of a batch of a prediction.

        This does not wait for values that are still being computed.

        Args:
            outputs: the rows of each output, by name.

        Example:
            node.output(probability=probability)
        """
        self._outputs = {**self._outputs, **outputs}

    def batches(self) -> Iterator[int]:
        """Run the batches of an evaluation or a prediction.

        Returns:
            An iterator over the numbers of the batches, from 0. During each one the
            other calls refer to its rows.

        Example:
            for _ in node.batches():
        """
        # Wait for the results of a batch only after the next one was started, so that
        # JAX always has work; and for all of them at the end: after that nothing reads
        # the parameters, so the next update may overwrite them in place.
        order = self._batches.order
        for batch in range(order.steps_per_epoch):
            self.position.enter_batch(batch, self._batches.batch_size(batch))
            previous, self._recorded = self._recorded, ()
            outputs, self._outputs = self._outputs, {}
            yield batch
            self._end_batch(batch - 1, previous, outputs)
        self._end_batch(order.steps_per_epoch - 1, self._recorded, self._outputs)
        self._recorded, self._outputs = (), {}

    def _end_batch(
        self, batch: int, recorded: Sequence[Any], outputs: Mapping[str, Any]
    ) -> None:
        """Wait for the results of a batch; -1 is before the first one."""
        for value in recorded:
            np.asarray(value)
        if batch >= 0:
            self.on_outputs(batch, outputs)

    # The calls of the executor.

    def drain(self, step: int, *, ends: bool = False) -> None:
        """Send all that this node has computed without lockstep, up to a step; on a
        server, wait until all workers have done so and all is applied. Then nothing
        changes until the next step. `ends` says that the step is the last one of the
        run."""
        if not self.has_drains:
            return
        if self.order.replays:
            (recorded,) = self.order.next(DRAIN, ALL_EDGES)
            if recorded != step:
                raise RunError(
                    f"the recorded order drains after step {recorded}, not {step}",
                    hint="replay with the options of the run that was recorded",
                )
        self.order.add(DRAIN, ALL_EDGES, step)
        for communicator in self._ends:
            communicator.drain(step, ends=ends)
        self._apply([end.take_rest() for end in self.updates])
        if self.replicas is not None:
            self.replicas.agree()
        if self.service is not None:
            # After the drain before, workers may drain again without a step.
            self._serve()
            self.service.drain()
            for table, done in self.service.steps_of_rows().items():
                self._rows.pushes.forget_up_to(table, done)
        if self.newest is not None:
            self.newest.drain(step)
            self._keep_new_states()
        if self.first_workers is not None:
            self.first_workers.drain()

    @property
    def has_drains(self) -> bool:
        """Whether this node does not wait for all others in each step, so that there is
        something to wait for between steps."""
        parts = self.service, self.newest, self.first_workers
        return self.has_own_steps or any(part is not None for part in parts)

    def joins(self, step: int) -> bool:
        """Whether this node does a step: with backup workers, not one that is over
        already. Waits until that is known."""
        if self.newest is None:
            return True
        joins = self.newest.joins(step)
        self._keep_new_states()
        return joins

    def end_step(self) -> None:
        """End the step, after the hook."""
        if self.newest is not None:
            self.newest.push(self.position.step)

    @property
    def is_taken(self) -> bool:
        """Whether the last step of this worker has taken its gradients: known once it
        joins the next step, or has drained."""
        return self.newest is None or self.newest.is_taken

    def _keep_new_states(self) -> None:
        """Load what the program has stored, unless the step has not taken this worker's
        gradients."""
        if self.is_taken:
            for table, arrays in self._new_states.items():
                self.tables[table].load(arrays)
        self._new_states = {}

    def _apply(self, arrived: Sequence[Sequence[WorkerMessage]]) -> None:
        """Update tables by what has come."""
        self._arrived = [message for messages in arrived for message in messages]
        if self._arrived:
            assert self.serve is not None
            self.serve(self)
        self._arrived = []

    @property
    def staleness(self) -> Counter[int]:
        """How many gradients were applied with each staleness."""
        total: Counter[int] = Counter()
        if self.service is not None:
            total += Counter(self.service.staleness)
        for end in self.updates:
            if isinstance(end, PeerGradients):
                total += end.staleness
        return total

    @property
    def horizon(self) -> int:
        """The newest step that this node knows all workers to have done: from the servers,
        or, in lockstep, its own; a worker that pulls nothing learns it at drains only."""
        own = 0 if self.has_own_steps else self.position.step
        return min((end.horizon for end in self._ends), default=own)

    @property
    def _ends(self) -> Iterable[WorkerEnd]:
        """The node's ends of tables without lockstep, each once."""
        return dict.fromkeys(self.communicators.values())

    def _delta_exchange(self, edge: int) -> DeltaExchange:
        return cast(DeltaExchange, self.communicators[edge])

    def drains_next(self, step: int) -> bool:
        """Whether a replayed order has a drain after a step."""
        return self.order.peek(DRAIN, ALL_EDGES) == [step]

    def resume(self, step: int, steps: Mapping[str, int]) -> None:
        """Continue after a step that all workers have done, and the last one of each."""
        if self.row_calls is not None:
            self.row_calls.pushes.resume(step)
        if self.service is not None:
            self.service.resume(steps)
        for communicator in self._ends:
            communicator.resume(steps)

    def enter_step(self, step: int, epoch: int, index: int) -> None:
        """Start training step `step` (from 1), which is batch `index` (from 0) of an
        epoch."""
        if self.service is not None:
            self._serve()
        count = self.training.batch_size(index)
        self.position.enter_step(step, epoch, index, count)
        self._trained = step
        self.exchange.new_step()
        if self.first_workers is not None:
            self.first_workers.begin(step, count)
        self._apply([end.take(step) for end in self.updates])

    def _serve(self) -> None:
        """Handle the messages of workers, until these drain, in a thread."""
        assert self.service is not None
        assert self.serve is not None
        self.service.start(partial(self.serve, self))

    def enter_evaluation(self, step: int) -> None:
        """Start the evaluation after a training step."""
        self.position.enter_evaluation(step)
        self.exchange.new_step()

    def discard_sent_back(self) -> None:
        """Receive what other nodes have sent for the next step, which there is not."""
        if self._trained in (0, self.position.last_step):
            return
        for edge in self.exchange.edges.values():
            if edge.sent_back and self.name in edge.targets:
                self.exchange.discard(Key(edge.id, self._trained + 1))

    def enter_prediction(self) -> None:
        """Start the prediction: `evaluating` are its batches, and it is the second of
        `phases`."""
        self.enter_evaluation(0)
        self.position.where = "prediction"

    @property
    def _own_rows(self) -> int:
        """How many rows of the current batch this node computes gradients of."""
        return self.position.own_rows(self.shard)

    def _lacks_rows(self, table: str) -> bool:
        """Whether this step does not update a table, because it is this worker's own, and
        the worker has none of the rows of the batch."""
        return table in self.local_tables and not self._own_rows

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

    @property
    def _batches(self) -> Batches:
        if not self.position.evaluation:
            return self.training
        assert self.evaluating is not None
        return self.evaluating

    def _next_rows(self, value: str) -> Array:
        """Return this node's rows of a value that it reads, in the next step."""
        epoch, index = self.position.epoch, self.position.batch
        steps = self.training.order.steps_per_epoch
        following = (epoch, index + 1) if index + 1 < steps else (epoch + 1, 0)
        read = next(each for each in self.phases[0].reads if each.value == value)
        rows = self.training.take(following, read.shard, None, self.position.parts)
        return rows[read.input]

    @property
    def _rows_of_step(self) -> tuple[int, int]:
        return self._own_rows, self.position.count

    def _key(self, edge: int) -> Key:
        return self.position.key(self.exchange.edges[edge])

    # Rows of sparse tables.

    def distinct_keys(
        self,
        table: str,
        *ids: Any,
        padding: tuple[int | None, ...] = (),
        show: Any = None,
        click: Any = None,
        time: Any = None,
    ) -> tuple[Any, ...]:
        """Collect the keys that this node looks up in a table, each once.

        Args:
            table: the name of the table.
            ids: arrays of keys, of any shape and integer dtype.
            padding: the key of each array that stands for none; None if there is none.
            show, click: what an occurrence in each row counts for the score of its key, of
                shape [batch]; by default 1 and 0.
            time: the time of each row in seconds, integers of shape [batch].

        Raises:
            RunError: scores are not finite, or times are not seconds from 0 to 2^32 - 1.

        Returns:
            The keys; and for each array the position of each of its keys among them, int32
            of the same shape, and -1 for padding.

        Example:
            keys, position = node.distinct_keys("emb.table", ids)
        """
        given = {"show": show, "click": click, "time": time}
        stats = {name: each for name, each in given.items() if each is not None}
        return self._rows.keys.collect(table, ids, padding, **stats)

    def send_keys(self, edge: int, *keys: BatchKeys) -> None:
        """Ask the nodes that hold tables for the rows of keys.

        Args:
            edge: the number of the edge.
            keys: the keys of each table of the edge.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.send_keys(1, keys)
        """
        self._rows.lookups.send_keys(edge, keys)

    def send_keys_ahead(self, edge: int) -> None:
        """Ask for the rows of the next step, while this one is still computed: in lockstep
        they come after the update of this step.

        Args:
            edge: the number of the edge.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.send_keys_ahead(1)
        """
        self._rows.lookups.send_keys_ahead(edge, self._next_rows)

    def receive_keys_ahead(self, edge: int) -> None:
        """Wait for the keys that nodes ask for in the next step, and find their rows, while
        gradients of this one are still computed. What the update changes of them is found
        again when the rows are read.

        Args:
            edge: the number of the edge.

        Raises:
            RunError: as `receive_keys`.

        Example:
            node.receive_keys_ahead(1)
        """
        self._rows.lookups.receive_keys_ahead(edge)

    def receive_keys(self, edge: int) -> tuple[AskedKeys, ...]:
        """Wait for the keys that nodes ask for.

        Args:
            edge: the number of the edge.

        Returns:
            The keys of each table of the edge, those of each node apart.

        Raises:
            RunError: for messages that do not fit the plan, for a lost peer, and for a
                passed deadline.

        Example:
            (keys,) = node.receive_keys(1)
        """
        return self._rows.lookups.receive_keys(edge)

    def distributed_lookup_table(self, table: str, keys: BatchKeys | AskedKeys) -> Any:
        """Look up the rows of keys, without changing the table.

        Args:
            table: the name of the table, which this node holds.
            keys: keys that nodes have asked for, or those of this node itself.

        Returns:
            The rows for each node that has asked; of this node's own keys an array
            [n, dim], with rows of zeros behind the n' <= n rows of its keys.

        Example:
            rows = node.distributed_lookup_table("emb.table", keys)
        """
        return self._rows.lookups.look_up(table, keys)

    def send_rows(self, edge: int, *rows: PartsOfRows) -> None:
        """Send nodes the rows that they have asked for.

        Args:
            edge: the number of the edge.
            rows: the rows of each table of the edge.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.send_rows(2, rows)
        """
        self._rows.lookups.send_rows(edge, rows)

    def receive_rows(self, edge: int, *keys: BatchKeys) -> tuple[Array, ...]:
        """Wait for the rows of keys.

        Args:
            edge: the number of the edge.
            keys: the keys of each table of the edge, as they were sent.

        Returns:
            An array [n, dim] for each table, with rows of zeros behind those of the keys.
            n is one of few sizes, so that functions are compiled for each in the warm-up.

        Raises:
            RunError: for messages that do not fit the plan, for a lost peer, and for a
                passed deadline.

        Example:
            (rows,) = node.receive_rows(2, keys)
        """
        return self._rows.lookups.receive_rows(edge, keys)

    def send_row_gradients(self, edge: int, *keys_and_gradients: Any) -> None:
        """Send the gradients of rows to the nodes that hold them.

        Args:
            edge: the number of the edge.
            keys_and_gradients: the keys of each table of the edge, and the gradients of
                the rows of all of them, of shape [n, dim] as the rows were received.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.send_row_gradients(3, keys, d_rows)
        """
        self._rows.pushes.send(edge, keys_and_gradients[::2], keys_and_gradients[1::2])

    def receive_row_gradients(self, edge: int) -> tuple[PartsOfRows, ...]:
        """Wait for the gradients of the rows that nodes have asked for.

        Args:
            edge: the number of the edge.

        Returns:
            The gradients of each table of the edge, those of each node apart.

        Raises:
            RunError: for messages that do not fit the plan, for a lost peer, and for a
                passed deadline.

        Example:
            (d_rows,) = node.receive_row_gradients(3)
        """
        return self._rows.pushes.receive(edge)

    def asked_keys(self, message: WorkerMessage) -> tuple[AskedKeys, ...]:
        """Return the keys of a message of one worker, which asks for their rows or brings
        the gradients of these.

        Args:
            message: the message.

        Returns:
            The keys of each table of the edge.

        Example:
            (keys,) = node.asked_keys(message)
        """
        return self._rows.lookups.of_message(message)

    def answer_rows(self, message: WorkerMessage, *rows: PartsOfRows) -> None:
        """Send the worker that a message is from the rows that it asks for.

        Args:
            message: the message with the keys.
            rows: the rows of each table of the edge.

        Raises:
            RunError: for a lost peer, and for a passed deadline.

        Example:
            node.answer_rows(message, rows)
        """
        assert self.service is not None
        self.service.answer_rows(message, [each.parts[0] for each in rows])

    def pushed_rows(self, message: WorkerMessage) -> tuple[PartsOfRows, ...]:
        """Return the gradients of rows that a message of one worker brings.

        Args:
            message: the message.

        Returns:
            The gradients of each table of the edge.

        Raises:
            RunError: for gradients that do not fit the rows.

        Example:
            (d_rows,) = node.pushed_rows(message)
        """
        return self._rows.pushes.of_message(message)

    def sum_by_key(self, *keys_and_gradients: Any) -> Any:
        """Add up the gradients of each key, in the order of the lookups and the nodes.

        Args:
            keys_and_gradients: the keys of each lookup, and the gradients of their rows.

        Returns:
            The sums.

        Raises:
            RunError: for gradients that are not those of the keys.

        Example:
            total = node.sum_by_key(keys, d_rows)
        """
        return self._rows.pushes.sum_by_key(
            keys_and_gradients[::2], keys_and_gradients[1::2]
        )

    def exact_squares(self, *gradients: Any) -> Array:
        """Return the sum of the squares of gradients without rounding, for a norm that
        does not depend on the number of servers.

        Args:
            gradients: arrays of a floating-point dtype, or trees of these.

        Returns:
            An exact sum, int64 of shape [134]: see `placer.tables.exact_squares`.

        Example:
            squares = node.exact_squares(g.h1.w, g.h1.b)
        """
        from placer.tables.exact_squares import exact_squares

        return exact_squares([np.asarray(each) for each in leaves(gradients)])

    def exact_squares_of_rows(self, table: str, total: KeySums) -> Array:
        """Return the sum of the squares of the sums by key of a table without rounding:
        without those that are dropped because they are not finite.

        Args:
            table: the name of the table, which this node holds.
            total: the sums by key.

        Returns:
            An exact sum, as that of `exact_squares`.

        Raises:
            RunError: sums are not finite, and are not dropped.

        Example:
            squares = node.exact_squares_of_rows("emb.table", total)
        """
        return self._rows.pushes.exact_squares(table, total)

    def rounded_sum(self, *sums: Array, dtype: str) -> Array:
        """Return the sum of exact sums, rounded once.

        Args:
            sums: exact sums, as those of `exact_squares`.
            dtype: the dtype of the result.

        Returns:
            A scalar.

        Example:
            clip_square = node.rounded_sum(squares, emb_squares, dtype="float32")
        """
        from placer.tables.exact_squares import rounded_sum

        return rounded_sum(sums, dtype)

    def update_rows(
        self,
        table: str,
        total: KeySums,
        scale: Any = None,
        limit: float | None = None,
        message: WorkerMessage | None = None,
    ) -> None:
        """Update the rows of keys by the optimizer's rule, at this step's learning rate:
        count the keys, admit them or not, update those that have a row, and forget.

        Args:
            table: the name of the table, which this node holds.
            total: the sum of the gradients of each key.
            scale: a factor of the gradients, such as that of clipping; None for 1.
            limit: clip each element of the sums to this magnitude, before that.
            message: the worker's message with these gradients, whose step decides the
                learning rate; None in lockstep.

        Raises:
            RunError: the table would need more memory than it may use; or gradients, or
                the factor, are not finite, and are not dropped.

        Example:
            node.update_rows("emb.table", total, scale=clip_scale)
        """
        self._rows.pushes.update(table, total, scale, limit, message)

    @property
    def _rows(self) -> RowCalls:
        assert self.row_calls is not None
        return self.row_calls


def _positions(step: int, rows: Array) -> Array:
    """Return the step and the number in the global batch of each row: uint32[rows,
    2]."""
    positions = np.empty((len(rows), 2), np.uint32)
    positions[:, 0] = step
    positions[:, 1] = rows
    return positions


def _concatenate(parts: Sequence[Array]) -> Array:
    """Concatenate the numbers of the rows of several ranges."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
