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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

from placer.build.plan import NodePhase
from placer.channel.protocol import Array, Key
from placer.config.sources import POSITION
from placer.layouts.partition import RowShard
from placer.runtime.program.devices import Devices
from placer.runtime.program.exchange import Exchange
from placer.runtime.program.microbatches import Microbatches
from placer.runtime.program.tree import fill_tree, leaves, like_tree
from placer.runtime.run.batches import Batches
from placer.tables.learning_rate import Schedule
from placer.tables.protocol import ProgramTable, StreamedTable

T = TypeVar("T")


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
        schedules: the learning-rate schedule of each table.
        training: the global batches of training.
        evaluating: the global batches of the evaluation, if there is one.
        phases: what the plan says about the node in training steps and in evaluations.
        on_record: receives recorded values, and the number of rows that a plain number
            among them counts by.
        devices: the devices of the node.
        on_outputs: called after each batch of an evaluation or a prediction, with its
            number and the outputs of the batch, once the next batch was started.
        where: what the node does now, for messages: `step 3`.
        parts, turns, microbatch, count: as in `Microbatches`.
    """

    name: str
    exchange: Exchange
    tables: Mapping[str, ProgramTable]
    schedules: Mapping[str, Schedule]
    training: Batches
    evaluating: Batches | None
    phases: tuple[NodePhase, NodePhase | None]
    on_record: Callable[[Mapping[str, Any], int], None]
    devices: Devices
    on_outputs: Callable[[int, Mapping[str, Any]], None] = lambda batch, outputs: None
    where: str = ""
    _outputs: Mapping[str, Any] = field(default_factory=dict, init=False)
    _recorded: tuple[Any, ...] = field(default=(), init=False)
    _step: int = field(default=0, init=False)
    _position: tuple[int, int] = field(default=(1, 0), init=False)
    _batch: int = field(default=0, init=False)
    _evaluation: bool = field(default=False, init=False)

    # The calls of node programs.

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
        batches, phase = self._batches, self.phases[self._evaluation]
        assert phase is not None
        indices = batches.order.indices(*self._position)
        rows_by_shard: dict[RowShard, dict[str, Array]] = {}
        arrays = []
        reads = {read.value: read for read in phase.reads}
        for value in values:
            read = reads[value]
            ranges = self.own_ranges(read.shard)
            if read.input == POSITION:
                rows = [np.arange(low, high) for low, high in ranges]
                arrays.append(_positions(self._step, _concatenate(rows)))
                continue
            if read.shard not in rows_by_shard:
                assert batches.rows is not None
                rows = [indices[low:high] for low, high in ranges]
                rows_by_shard[read.shard] = batches.rows.take(_concatenate(rows))
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

    def update(self, table: str, gradients: Any, scale: Any = None) -> None:
        """Update a table by the optimizer's rule, at this step's learning rate.

        Args:
            table: the name of the table.
            gradients: a value of the table's class, with the gradient of each block.
            scale: a factor of the gradients, such as that of clipping: one for all, or
                a tuple with one per block; None for 1.

        Raises:
            RunError: for gradients that do not fit the blocks.

        Example:
            node.update("dense", g, scale=clip_scale)
        """
        rate = self.schedules[table](self._step - 1)
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
        rate = self.schedules[table](self._step - 1)
        with target.update_in_chunks(learning_rate=rate) as update:
            for edge in edges:
                for name, start, views in self.exchange.receive_chunks(self._key(edge)):
                    update.apply(target.block_of_gradient[name], start, views)

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
        arrays = tuple(leaves(gradients))
        directions = self.tables[table].compute_directions(arrays, scale=scale)
        return like_tree(gradients, directions)

    def apply_directions(self, table: str, ratios: Any) -> None:
        """Apply the update directions of `compute_directions`: the second phase of a
        two-phase rule.

        Args:
            table: the name of the table.
            ratios: a value of the table's class, with the trust ratio of each block's
                parameter, a scalar.

        Example:
            node.apply_directions("dense", ratios)
        """
        rate = self.schedules[table](self._step - 1)
        arrays = tuple(leaves(ratios))
        self.tables[table].apply_directions(arrays, learning_rate=rate)

    def store(self, table: str, values: Any) -> None:
        """Replace the values of a table by values that the program computed, such as
        the running statistics of batch normalization.

        Args:
            table: the name of the table.
            values: a value of the table's class, with the new value of each block.

        Raises:
            RunError: for values that do not fit the blocks.

        Example:
            node.store("state", new)
        """
        self.tables[table].load([np.asarray(value) for value in leaves(values)])

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
        self.exchange.send(self._key(edge), tuple(leaves(values)), self.rows)

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
        arrays = self.exchange.receive(self._key(edge), self.rows)
        return arrays if kind is None else fill_tree(kind, arrays)

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
        if self._evaluation:
            self._recorded += tuple(values.values())
        self.on_record(values, self.count if self._evaluation else 1)

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
            self._batch = batch
            self._position = (1, batch)
            self.count = self._batches.batch_size(batch)
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

    def enter_step(self, step: int, epoch: int, index: int) -> None:
        """Start training step `step` (from 1), which is batch `index` (from 0) of an
        epoch."""
        self.where = f"step {step}"
        self._step, self._position, self._evaluation = step, (epoch, index), False
        self._batch = 0
        self.count = self.training.batch_size(index)
        self.exchange.new_step()

    def enter_evaluation(self, step: int) -> None:
        """Start the evaluation after a training step."""
        self.where = f"evaluation after step {step}"
        self._evaluation, self._batch = True, 0
        self.count = 0
        self.exchange.new_step()

    def enter_prediction(self) -> None:
        """Start the prediction: `evaluating` are its batches, and it is the second of
        `phases`."""
        self.enter_evaluation(0)
        self.where = "prediction"

    @property
    def _batches(self) -> Batches:
        if not self._evaluation:
            return self.training
        assert self.evaluating is not None
        return self.evaluating

    def _key(self, edge: int) -> Key:
        # An edge outside the loop over microbatches has one message per step. Training
        # has microbatches and one batch, an evaluation has batches and no microbatches.
        if self.exchange.edges[edge].once:
            return Key(edge, self._step)
        return Key(edge, self._step, self.microbatch or self._batch)


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
