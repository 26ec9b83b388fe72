"""`Node`: the calls that node programs consist of.

A node program is a Python module with jitted functions and a function `step(node)`. It has a
function `evaluate(node)` if the spec has an evaluation, and `predict(node)` if it has outputs:

    def step(node):
        image, label = node.read("image", "label")
        p = node.receive(PARAMETERS_FROM_PS, Dense)
        loss, g = forward_backward(p, image, label)
        node.send(GRADIENTS_TO_PS, g)
        node.record(loss=loss)

`Dense` is a NamedTuple with the parameters of a table, or their gradients.

The constants at the top of a program are edge numbers in the plan. Every call may raise `Aborted` once the run
has failed on another node. Calls that send messages or wait for them raise RunError for a
lost peer, for a passed deadline, and for messages that do not fit the plan.

This file defines the calls on tables, edges and devices. `call_of_part` adds the calls of the
node's parts; the parts document them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

from placer.channel.interface import Array, Key
from placer.place.layouts.partition import RowShard
from placer.runtime.asynchronous.step_workers import StepWorkers
from placer.runtime.exchange.devices import Devices
from placer.runtime.exchange.exchange import Exchange
from placer.runtime.exchange.nested_tuples import fill_tree, leaves, like_tree
from placer.runtime.exchange.parts import Part
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.runtime.node.asynchronous_calls import AsynchronousCalls
from placer.runtime.node.batch_calls import BatchCalls
from placer.runtime.node.call_of_part import call_of_part
from placer.runtime.node.learning_rates import LearningRates
from placer.runtime.node.microbatches import Microbatches
from placer.runtime.node.next_parameters import NextParameters
from placer.runtime.node.position import Position
from placer.runtime.node.row_calls import RowCalls
from placer.tables.protocol import ProgramTable, StreamedTable

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Node:
    """One node of a run, as its program sees it.

    Calls return numpy arrays in host memory, or JAX arrays on the node's devices. Jitted
    functions on the CPU read the numpy arrays without a copy. Programs must not write to
    them.

    Attributes:
        name: the name of the node, such as `worker:0`.
        position: the current step, batch and microbatch; all parts share it.
        exchange: the node's side of all edges.
        tables: the tables of the node, by name.
        rates: the learning rates of the tables.
        devices: the devices of the node.
        shard: the node's share of a step's rows, for asynchronous tables.
        local_tables: the names of tables that this worker updates itself.
        next_parameters: parameters that servers send while they update them.
        batch_calls: the calls that read batches and return results.
        microbatch_calls: the calls that run microbatches.
        asynchronous_calls: the calls on asynchronous tables.
        row_calls: the calls on sparse tables; None if the plan has no sparse table.
        step_workers: the calls of steps that wait for all workers or, with backup
            workers, for the fastest ones.
    """

    name: str
    position: Position
    exchange: Exchange
    tables: Mapping[str, ProgramTable]
    rates: LearningRates
    devices: Devices
    shard: RowShard = field(default_factory=lambda: RowShard((0,), 1))
    local_tables: frozenset[str] = frozenset()
    next_parameters: NextParameters
    batch_calls: BatchCalls
    microbatch_calls: Microbatches
    asynchronous_calls: AsynchronousCalls
    row_calls: RowCalls | None = None
    step_workers: StepWorkers = field(default_factory=StepWorkers)

    # The rows of the batch.

    @property
    def count(self) -> int:
        """The number of rows of the current global batch."""
        return self.position.count

    @property
    def rows(self) -> int:
        """The number of rows of the current microbatch on all nodes together. Outside a
        microbatch, the number of rows of the global batch."""
        return self.position.rows

    @property
    def share(self) -> float:
        """The fraction of the current global batch's rows that belongs to this node."""
        return self.position.own_rows(self.shard) / self.position.count

    # Tables.

    def parameters(self, table: str, kind: type[T]) -> T:
        """Return the current values of a table.

        Args:
            table: the name of the table.
            kind: the NamedTuple class of the table, with a field for each layer.

        Returns:
            An instance of `kind`, with one read-only array per block, of the block's shape
            and the table's dtype. If the table is updated in place, the next update
            overwrites the arrays.

        Raises:
            RunError: after an update that was interrupted.

        Example:
            p = node.parameters("dense", Dense)
        """
        return fill_tree(kind, self.tables[table].values())

    def evaluation_parameters(self, table: str, kind: type[T]) -> T:
        """Return the values of a table for evaluations, such as a running mean.

        Args:
            table: the name of the table, whose optimizer has `eval_params`.
            kind: the NamedTuple class of the table, as in `parameters`.

        Returns:
            An instance of `kind`, with one array per block, as `parameters` returns.

        Example:
            p = node.evaluation_parameters("dense", Dense)
        """
        return fill_tree(kind, self.tables[table].evaluation_values())

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
            gradients: an instance of the table's class, with the gradient of each block.
            scale: a factor for the gradients, for example from clipping: one factor for
                all, or a tuple with one per block. None means 1.
            message: the worker's message with these gradients; its step determines the
                learning rate. None for a synchronous table.

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

        The gradients of all sources of an edge are summed in the order of the sources,
        without first joining the chunks in a buffer.

        Args:
            table: the name of the table, which is in host memory.
            edges: the numbers of the edges; together they carry one gradient per block.

        Raises:
            RunError: for messages that do not fit the blocks.

        Example:
            node.update_from_edges("dense", GRADIENTS_FROM_WORKERS)
        """
        # The compiler uses this call only for tables in host memory. `isinstance` with a protocol
        # would check that, but takes microseconds in each update.
        target = cast(StreamedTable, self.tables[table])
        rate = self.rates.of(table)
        sent_back = self.next_parameters.begin(table, self.tables[table])
        with target.update_in_chunks(learning_rate=rate) as update:
            for edge in edges:
                for name, start, views in self.exchange.receive_chunks(self._key(edge)):
                    block = target.block_of_gradient[name]
                    update.apply(block, start, views)
                    if sent_back is not None:
                        sent_back.written(block, start + views[0].size)
        if sent_back is not None:
            sent_back.end()

    def compute_directions(self, table: str, gradients: T, scale: Any = None) -> T:
        """Compute update directions: the first phase of a two-phase rule.

        The trust ratios for `apply_directions` are computed from the norms of the directions
        and the parameters.

        Args:
            table: the name of the table.
            gradients: an instance of the table's class, with the gradient of each block.
            scale: a factor for the gradients, as in `update`.

        Returns:
            An instance of the table's class, with the update direction of each block.

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
        """Apply the update directions: the second phase of a two-phase rule.

        Args:
            table: the name of the table.
            ratios: an instance of the table's class. Each block holds the trust ratio of
                its parameter, a scalar.
            message: the worker's message, as in `update`.

        Example:
            node.apply_directions("dense", ratios)
        """
        if self._lacks_rows(table):
            return
        rate = self.rates.of(table, message)
        arrays = tuple(leaves(ratios))
        self.tables[table].apply_directions(arrays, learning_rate=rate)

    def store(self, table: str, values: Any) -> None:
        """Replace the values of a table, such as the running mean of batch normalization.

        With backup workers, the values are dropped if the step does not use this worker's
        gradients.

        Args:
            table: the name of the table.
            values: an instance of the table's class, with the new value of each block.

        Raises:
            RunError: for values that do not fit the blocks.

        Example:
            node.store("state", new)
        """
        arrays = [np.asarray(value) for value in leaves(values)]
        self.step_workers.store(self.tables[table], arrays)

    def _lacks_rows(self, table: str) -> bool:
        """Return True if the worker skips its own table's update, because it has no rows."""
        return table in self.local_tables and not self.position.own_rows(self.shard)

    # Edges.

    def send(self, edge: int, *values: Any) -> None:
        """Send the values of an edge to the nodes that need them.

        This waits only if a peer is so far behind that it has no credit left. The
        arrays must not change until the message has been received.

        Args:
            edge: the number of the edge.
            values: one array per value of the edge, in its order, NamedTuples of arrays,
                or parts by `cut`; None for a value that this node holds no part of.

        Raises:
            RunError: if a part is not the range that the edge sends.

        Example:
            node.send(GRADIENTS_TO_PS, g)
        """
        position, following = self.position, self.next_parameters
        if following.steps.get(edge) == position.step and not position.evaluation:
            return  # already sent while the previous step updated them
        planned = self.exchange.edges[edge]
        self.exchange.send(position.key(planned), tuple(leaves(values)), position.rows)
        if planned.bucket is not None:
            following.expect()  # from now on, servers may send new parameters

    def receive(self, edge: int, kind: type[Any] | None = None) -> Any:
        """Wait for the values of an edge.

        Parts of several nodes are concatenated or added, as the plan says.

        Args:
            edge: the number of the edge.
            kind: the NamedTuple class of a table, for an edge with one value for each block
                of the table.

        Returns:
            A tuple with one array per value of the edge, of the shape and dtype in the
            plan; or an instance of `kind`.

        Example:
            p = node.receive(PARAMETERS_FROM_PS, Dense)
        """
        arrays = self.exchange.receive(self._key(edge), self.position.rows)
        return arrays if kind is None else fill_tree(kind, arrays)

    def send_and_recv(self, edge: int, *values: Any, back: int) -> tuple[Array, ...]:
        """Send values to a heter worker, and wait for the results of its task.

        Args:
            edge: the number of the edge to the heter worker.
            values: one array per value of the edge.
            back: the number of the edge that returns the results.

        Returns:
            One array per value of the edge `back`.

        Example:
            (deep,) = node.send_and_recv(
                ACTIVATIONS_TO_HETER, embedded, back=ACTIVATIONS_FROM_HETER
            )
        """
        self.send(edge, *values)
        results: tuple[Array, ...] = self.receive(back)
        return results

    def cut(self, array: Any, start: int, stop: int) -> Part:
        """Return a range of the elements of an array, flattened in C order, to send.

        This copies nothing, and does not wait until JAX has computed the array.

        Args:
            array: an array of any shape.
            start: the first element.
            stop: the element after the last.

        Returns:
            The part. Its `values` are a flat array of shape [stop - start].

        Example:
            node.send(GRADIENTS_TO_PS1, node.cut(g.h1.w, 16384, 32768), g.h1.b)
        """
        return Part(array, start, stop)

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

    def _key(self, edge: int) -> Key:
        return self.position.key(self.exchange.edges[edge])

    # Devices.

    def memcpy_h2d(self, *values: Any, to: str, rows: int = 0) -> tuple[Any, ...]:
        """Copy arrays from host memory to devices, in the background.

        Args:
            values: arrays of any shape and dtype, or NamedTuples of arrays.
            to: the devices, such as `gpu:0` or `gpu:0-7`.
            rows: how many of the first arrays are split over the devices by rows; every
                device gets a full copy of the remaining arrays.

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
            values: JAX arrays of any shape and dtype, or NamedTuples of arrays.
            to: the devices, such as `gpu:0` or `gpu:0-7`.
            rows: how many of the first arrays are split over the devices by rows; every
                device gets a full copy of the remaining arrays.

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
            values: JAX arrays of any shape and dtype, or NamedTuples of arrays.
            wait: whether to wait for the copies, because a function on the CPU uses them.
                Calls of the node wait without this flag.

        Returns:
            One array per value, in the same NamedTuples.

        Example:
            loss, accuracy, g = node.memcpy_d2h(loss, accuracy, g)
        """
        return like_tree(values, self.devices.copy_to_host(tuple(leaves(values)), wait))

    # Exact norms.

    def exact_squares(self, *gradients: Any) -> Array:
        """Return the sum of the squares of gradients without rounding.

        A norm computed from it does not depend on the number of servers.

        Args:
            gradients: arrays of a floating-point dtype, or trees of arrays.

        Returns:
            An exact sum, int64 of shape [134]: see `placer.tables.exact_squares`.

        Example:
            squares = node.exact_squares(g.h1.w, g.h1.b)
        """
        from placer.tables.exact_squares import exact_squares

        return exact_squares([np.asarray(each) for each in leaves(gradients)])

    def rounded_sum(self, *sums: Array, dtype: str) -> Array:
        """Return the sum of exact sums, rounded once.

        Args:
            sums: exact sums, such as the results of `exact_squares`.
            dtype: the dtype of the result.

        Returns:
            A scalar.

        Example:
            clip_square = node.rounded_sum(squares, emb_squares, dtype="float32")
        """
        from placer.tables.exact_squares import rounded_sum

        return rounded_sum(sums, dtype)

    # Inputs, metrics and outputs of batches: `batch_calls.py`.

    read = call_of_part("batch_calls", BatchCalls.read)
    batches = call_of_part("batch_calls", BatchCalls.batches)
    record = call_of_part("batch_calls", BatchCalls.record)
    output = call_of_part("batch_calls", BatchCalls.output)

    # Microbatches: `microbatches.py`.

    microbatches = call_of_part("microbatch_calls", Microbatches.microbatches)
    keep_values = call_of_part("microbatch_calls", Microbatches.keep_values)
    load_values = call_of_part("microbatch_calls", Microbatches.load_values)
    pop_values = call_of_part("microbatch_calls", Microbatches.pop_values)
    sum_microbatches = call_of_part("microbatch_calls", Microbatches.sum_microbatches)
    join_microbatches = call_of_part("microbatch_calls", Microbatches.join_microbatches)
    one_microbatch = call_of_part("microbatch_calls", Microbatches.one_microbatch)
    microbatch_totals = call_of_part("microbatch_calls", Microbatches.microbatch_totals)
    split_microbatches = call_of_part(
        "microbatch_calls", Microbatches.split_microbatches
    )
    first_microbatch = call_of_part("microbatch_calls", Microbatches.first_microbatch)

    # Asynchronous tables: `asynchronous_calls.py`.

    pull = call_of_part("asynchronous_calls", AsynchronousCalls.pull)
    push = call_of_part("asynchronous_calls", AsynchronousCalls.push)
    merge = call_of_part("asynchronous_calls", AsynchronousCalls.merge)
    push_delta = call_of_part("asynchronous_calls", AsynchronousCalls.push_delta)
    messages = call_of_part("asynchronous_calls", AsynchronousCalls.messages)
    answer = call_of_part("asynchronous_calls", AsynchronousCalls.answer)
    answer_rows = call_of_part("asynchronous_calls", AsynchronousCalls.answer_rows)
    pushed = call_of_part("asynchronous_calls", AsynchronousCalls.pushed)
    update_from = call_of_part("asynchronous_calls", AsynchronousCalls.update_from)
    add_to_sums = call_of_part("asynchronous_calls", AsynchronousCalls.add_to_sums)
    send_sum = call_of_part("asynchronous_calls", AsynchronousCalls.send_sum)
    wait_for_workers = call_of_part(
        "asynchronous_calls", AsynchronousCalls.wait_for_workers
    )

    # Steps with backup workers: `step_workers.py`.

    offer = call_of_part("step_workers", StepWorkers.offer)
    sum_of_first = call_of_part("step_workers", StepWorkers.sum_of_first)

    # Rows of sparse tables: `row_calls.py`.

    distinct_keys = call_of_part("row_calls", RowCalls.distinct_keys)
    send_keys = call_of_part("row_calls", RowCalls.send_keys)
    send_keys_ahead = call_of_part("row_calls", RowCalls.send_keys_ahead)
    receive_keys_ahead = call_of_part("row_calls", RowCalls.receive_keys_ahead)
    receive_keys = call_of_part("row_calls", RowCalls.receive_keys)
    distributed_lookup_table = call_of_part(
        "row_calls", RowCalls.distributed_lookup_table
    )
    send_rows = call_of_part("row_calls", RowCalls.send_rows)
    receive_rows = call_of_part("row_calls", RowCalls.receive_rows)
    send_row_gradients = call_of_part("row_calls", RowCalls.send_row_gradients)
    receive_row_gradients = call_of_part("row_calls", RowCalls.receive_row_gradients)
    asked_keys = call_of_part("row_calls", RowCalls.asked_keys)
    pushed_rows = call_of_part("row_calls", RowCalls.pushed_rows)
    sum_by_key = call_of_part("row_calls", RowCalls.sum_by_key)
    exact_squares_of_rows = call_of_part("row_calls", RowCalls.exact_squares_of_rows)
    update_rows = call_of_part("row_calls", RowCalls.update_rows)
