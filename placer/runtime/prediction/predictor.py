"""Runs the program of one node for a prediction."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from placer.errors import DataError
from placer.plan.plan import Edge, NodePlan, data_root
from placer.plan.settings.data.source import RowSource
from placer.readers import Order
from placer.runtime.batches.batches import Batches
from placer.runtime.batches.opened_sources import PREDICTION, open_rows
from placer.runtime.batches.same_rows import compare_rows
from placer.runtime.control.events import COMPARING, DONE, READING, WRITING, Predicted
from placer.runtime.control.execution import Execution
from placer.runtime.control.handshake import agree
from placer.runtime.control.result import PredictionResult
from placer.runtime.control.table_counts import TableCounts, add_counts
from placer.runtime.exchange.devices import Devices
from placer.runtime.exchange.exchange import Exchange
from placer.runtime.node.asynchronous_calls import AsynchronousCalls
from placer.runtime.node.batch_calls import BatchCalls
from placer.runtime.node.driver import NodeDriver
from placer.runtime.node.learning_rates import LearningRates
from placer.runtime.node.microbatches import Microbatches
from placer.runtime.node.next_parameters import NextParameters
from placer.runtime.node.node import Node
from placer.runtime.node.position import Position
from placer.runtime.node.program_file import Hooks
from placer.runtime.node.run_phases import compiling, finish, joined
from placer.runtime.node.warm_up import warm_up_prediction
from placer.runtime.prediction.column_errors import outputs_named
from placer.runtime.prediction.output_rows import OutputGatherer
from placer.runtime.prediction.request import PredictionRequest, chosen_outputs, rows_of
from placer.runtime.saving.start_parameters import open_start, start_fingerprint
from placer.runtime.training_loop.make_dense_tables import make_tables
from placer.runtime.training_loop.make_sparse_tables import (
    count_in_tables,
    make_row_calls,
    make_sparse_tables,
    open_row_exchange,
)
from placer.tables.block_table import BlockTable

if TYPE_CHECKING:
    from placer.runtime.prediction.output_file import Columns, Write
    from placer.tables.sparse.table import SparseTable


def predict(
    execution: Execution, hooks: Hooks, request: PredictionRequest
) -> PredictionResult | None:
    """Run a node's part of a prediction, from the first barrier to the last.

    The parameters come from `--init-params`. The tables have no optimizer slots.

    Args:
        hooks: the hooks of the node's program.
        request: the rows to predict and the file to write.

    Returns:
        The result on the control node, None on other nodes.
    """
    plan, channel = execution.plan, execution.channel
    me = execution.me = _without_optimizers(execution.me)
    data = rows_of(plan, request)
    with ExitStack() as contexts:
        devices = contexts.enter_context(joined(execution))
        start = open_start(execution)
        tables = make_tables(execution, start, devices)
        execution.report_state(READING)
        with outputs_named(plan, data):
            rows = open_rows(execution, data, PREDICTION)
        execution.report_state(COMPARING)
        facts = {
            "prediction rows": None if rows is None else rows.rows,
            "--params": start_fingerprint(execution.options, start),
        }
        count = agree(execution, facts)["prediction rows"]
        compare_rows(plan, channel, PREDICTION, rows, data)
        if count is None:
            raise DataError(
                "no output depends on an input, so no rows can be predicted"
            )
        write: Write = _ignore
        if execution.is_control:
            write = contexts.enter_context(_open_file(execution, request, data, count))
            write = _reporting(execution, write, count)
        seconds = 0.0
        if count:
            order = Order(count, data.batch, shuffle=False, seed=0, remainder="keep")
            batches = Batches(order, rows)
            gatherer = OutputGatherer(plan, channel, batches, write)
            edges = {edge.id: edge for edge in plan.prediction_edges}
            assert hooks.predict is not None
            sparse = make_sparse_tables(execution, start, trains=False)
            batch_calls = BatchCalls(
                Position(),
                batches,
                batches,
                (me.prediction or me.step, me.prediction),
                lambda recorded, rows: None,
                gatherer.add,
            )
            node = _make_node(execution, devices, tables, edges, batch_calls, sparse)
            execution.where = lambda: node.position.where
            execution.table_counts = partial(count_in_tables, sparse)
            with compiling(execution, node.position):
                warm_up_prediction(plan, node, hooks.predict)
            execution.report_state("predicting")
            began = time.perf_counter()
            NodeDriver(node).enter_prediction()
            hooks.predict(node)
            gatherer.finish()
            seconds = time.perf_counter() - began
            node.position.where = "after the last batch"
        counts = msgspec.to_builtins(execution.table_counts())
        reports = finish(execution, {"tables": counts})
        if execution.is_control:
            execution.report_state(WRITING)
    if not execution.is_control:
        execution.report_state(DONE)
        return None
    held = (
        msgspec.convert(report["tables"], dict[str, TableCounts]) for report in reports
    )
    result = PredictionResult(
        rows=count,
        samples_per_second=count / seconds if seconds else 0.0,
        bytes_sent={
            node_plan.name: report["bytes_sent"]
            for node_plan, report in zip(plan.nodes, reports, strict=True)
        },
        tables={name: counts.as_dict() for name, counts in add_counts(held).items()},
    )
    execution.report(result)
    execution.report_state(DONE)
    return result


def _make_node(
    execution: Execution,
    devices: Devices,
    tables: Mapping[str, BlockTable],
    edges: Mapping[int, Edge],
    batch_calls: BatchCalls,
    sparse: dict[str, SparseTable],
) -> Node:
    """Return the `Node` for the program. It never updates tables."""
    plan, me, channel = execution.plan, execution.me, execution.channel
    position = batch_calls.position
    rates = LearningRates(position, {}, {})
    exchange = Exchange(me.name, channel, edges, plan.workers)
    by_key = open_row_exchange(plan, me, channel, edges)
    return Node(
        name=me.name,
        position=position,
        exchange=exchange,
        tables=tables,
        rates=rates,
        devices=devices,
        next_parameters=NextParameters(position, exchange),
        batch_calls=batch_calls,
        microbatch_calls=Microbatches(position),
        asynchronous_calls=AsynchronousCalls(position, edges, tables, rates),
        row_calls=make_row_calls(
            execution, by_key, sparse, rates, batch_calls.next_rows
        ),
    )


def _without_optimizers(me: NodePlan) -> NodePlan:
    """Return the node's plan without optimizers, so that its tables have no slots."""
    tables = tuple(
        structs.replace(
            table,
            rule=None,
            hyper={},
            learning_rate=0.0,
            in_place=False,
            transformation="",
            averages=False,
        )
        for table in me.tables
    )
    return structs.replace(me, tables=tables)


def _ignore(outputs: Columns) -> None:
    """Ignore outputs. Only the control node writes them."""


REPORT_EVERY = 0.25
"""The shortest time between two progress reports, in seconds."""


def _reporting(execution: Execution, write: Write, total: int) -> Write:
    rows, last = 0, -REPORT_EVERY

    def write_and_report(outputs: Columns) -> None:
        nonlocal rows, last
        write(outputs)
        rows += len(next(iter(outputs.values())))
        now = time.monotonic()
        if now - last >= REPORT_EVERY or rows == total:
            last = now
            execution.report(Predicted(rows, total))

    return write_and_report


def _open_file(
    execution: Execution, request: PredictionRequest, data: RowSource, count: int
) -> AbstractContextManager[Write]:
    # Imported here because these modules import pyarrow.
    from placer.readers.keys import read_keys
    from placer.runtime.prediction.output_file import prediction_file

    spec_folder = data_root(execution.folder)
    keys = read_keys(data, request.keys, spec_folder)
    for name, column in keys.items():
        if len(column) != count:
            raise DataError(
                f"{data.source}: column '{name}' has {len(column)} rows, but the inputs"
                f" have {count}"
            )
    outputs = chosen_outputs(execution.plan, request)
    return prediction_file(Path(request.out), outputs, keys, count)
