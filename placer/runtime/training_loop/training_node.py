"""Creates the node of a training run: its tables, sources and edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from placer.plan.plan import NodePlan, Plan, Table, edges_ahead
from placer.plan.plan import SparseTable as PlannedSparse
from placer.runtime.asynchronous.local_values import LocalValues
from placer.runtime.batches.agreed_files import agree_on_files
from placer.runtime.batches.opened_sources import EVALUATION, TRAINING, open_batches
from placer.runtime.control.events import READING
from placer.runtime.control.execution import Execution
from placer.runtime.exchange.devices import Devices, in_another_thread
from placer.runtime.exchange.exchange import Exchange
from placer.runtime.exchange.sent_back import find_sent_back
from placer.runtime.metrics.stream import MetricsStream
from placer.runtime.node.asynchronous_calls import AsynchronousCalls
from placer.runtime.node.batch_calls import BatchCalls
from placer.runtime.node.driver import NodeDriver
from placer.runtime.node.learning_rates import LearningRates
from placer.runtime.node.microbatches import Microbatches
from placer.runtime.node.next_parameters import NextParameters
from placer.runtime.node.node import Node
from placer.runtime.node.position import Position
from placer.runtime.node.program_file import Hook, Hooks
from placer.runtime.saving.start_parameters import StartParameters
from placer.runtime.timeline.recording import Recording
from placer.runtime.timeline.traced_node import TracedNode
from placer.runtime.training_loop.asynchronous_tables import (
    open_backup,
    open_communicators,
    open_order,
    open_replicas,
    open_service,
    updates_of,
)
from placer.runtime.training_loop.make_dense_tables import make_tables
from placer.runtime.training_loop.make_sparse_tables import (
    make_row_calls,
    make_sparse_tables,
    open_row_exchange,
)
from placer.tables.block_table import BlockTable
from placer.tables.learning_rate import build_schedule

if TYPE_CHECKING:
    from placer.tables.sparse.table import SparseTable


def make_node(
    execution: Execution,
    start: StartParameters | None,
    metrics: MetricsStream,
    devices: Devices,
    hooks: Hooks,
    recording: Recording | None,
    contexts: ExitStack,
    *,
    are_loaded: bool,
) -> tuple[
    NodeDriver, dict[str, BlockTable], dict[str, LocalValues], dict[str, SparseTable]
]:
    """Create a node and everything that its program needs before the handshake.

    If the tables `are_loaded` from a checkpoint afterwards, their dense values are 0 until then.

    Returns:
        The driver of the node, its tables by name, the worker's own values (mode `geo`)
        by table name, and its sparse tables by name.
    """
    plan, me = execution.plan, execution.me
    tables = make_tables(execution, start, devices, are_loaded=are_loaded)
    local = {
        table.name: LocalValues(tables[table.name])
        for table in me.tables
        if table.local
    }
    channel = execution.channel
    kind: Callable[..., Node] = Node
    if recording is not None:
        channel = recording.traced_channel()
        kind = partial(TracedNode, recorder=recording.recorder)
    edges = {edge.id: edge for edge in (*plan.step_edges, *plan.evaluation_edges)}
    sparse = make_sparse_tables(execution, start)
    rows = open_row_exchange(plan, me, channel, edges)
    execution.report_state(READING)
    fixed = plan.train if plan.train.stream is None else None
    agree_on_files(execution, {TRAINING: fixed, EVALUATION: plan.evaluation})
    training = open_batches(execution, plan.train, TRAINING)
    evaluating = None
    if (data := plan.evaluation) is not None:
        evaluating = open_batches(execution, data, EVALUATION)
    if recording is not None:
        training = replace(training, watch=recording)
        evaluating = evaluating and replace(evaluating, watch=recording)
    for each in filter(None, (training, evaluating)):
        contexts.callback(each.close)
    order = open_order(plan, me, execution.options, contexts)
    communicators = open_communicators(plan, me, channel, order, local, contexts, rows)
    service, serve = open_service(plan, me, channel, order, rows), hooks.serve
    if service is not None:
        contexts.callback(service.close)
    if recording is not None:
        for end in (*dict.fromkeys(communicators.values()), service):
            if end is not None and end.threads is not None:
                recording.watch_threads(end.threads)
    if service is not None and serve is not None:
        serve = _in_service_thread(serve, plan, me, devices)
    exchange = Exchange(me.name, channel, edges, plan.workers)
    position = Position(plan.settings.train.microbatches)
    planned: Sequence[Table | PlannedSparse] = (*me.tables, *plan.sparse_tables)
    rates = LearningRates(
        position,
        {table.name: build_schedule(table.learning_rate or 0.0) for table in planned},
        {table.name: table.mode for table in planned if table.mode is not None},
    )
    shard = plan.pushed_rows(me.name)
    batch_calls = BatchCalls(
        position, training, evaluating, (me.step, me.evaluation), metrics.record
    )
    row_calls = make_row_calls(
        execution, rows, sparse, rates, batch_calls.next_rows, communicators
    )
    node = kind(
        name=me.name,
        position=position,
        exchange=exchange,
        tables=tables,
        rates=rates,
        devices=devices,
        shard=shard,
        local_tables=frozenset(local),
        step_workers=open_backup(plan, me, exchange, order),
        next_parameters=NextParameters(
            position,
            exchange,
            find_sent_back(plan.step_edges, me),
            [edge.id for edge in edges_ahead(plan.step_edges, me.name)],
        ),
        batch_calls=batch_calls,
        microbatch_calls=Microbatches(position, me.turns),
        asynchronous_calls=AsynchronousCalls(
            position, edges, tables, rates, shard, communicators, service
        ),
        row_calls=row_calls,
    )
    driver = NodeDriver(
        node,
        serve,
        updates_of(communicators),
        open_replicas(plan, me, channel, tables),
        has_own_steps=plan.worker_of(me.name) is not None,
        order=order,
    )
    return driver, tables, local, sparse


def _in_service_thread(serve: Hook, plan: Plan, me: NodePlan, devices: Devices) -> Hook:
    """Return a hook `serve` that applies the node's JAX settings in its own thread."""

    def serve_in_thread(node: Node) -> None:
        with in_another_thread(plan, me, devices):
            serve(node)

    return serve_in_thread
