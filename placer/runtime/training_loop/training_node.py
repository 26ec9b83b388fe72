"""The node of a run as its program sees it: tables, sources, and the ends of edges."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from placer.plan.plan import NodePlan, Plan, edges_ahead
from placer.runtime.asynchronous.local_values import LocalValues
from placer.runtime.batches.opened_sources import EVALUATION, TRAINING, open_batches
from placer.runtime.control.events import READING
from placer.runtime.control.execution import Execution
from placer.runtime.exchange.devices import Devices, in_another_thread
from placer.runtime.exchange.exchange import Exchange
from placer.runtime.exchange.sent_back import find_sent_back
from placer.runtime.metrics.stream import MetricsStream
from placer.runtime.node.node import Node
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
from placer.runtime.training_loop.make_sparse_tables import make_row_calls
from placer.tables.block_table import BlockTable
from placer.tables.learning_rate import build_schedule


def make_node(
    execution: Execution,
    start: StartParameters | None,
    metrics: MetricsStream,
    devices: Devices,
    hooks: Hooks,
    recording: Recording | None,
    contexts: ExitStack,
) -> tuple[Node, dict[str, BlockTable], dict[str, LocalValues]]:
    """Create everything that a program needs, except for what the handshake decides;
    return the node, its tables by name, and values of a worker's own by table."""
    plan, me = execution.plan, execution.me
    tables = make_tables(execution, start, devices)
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
    row_calls = make_row_calls(execution, start, channel, edges)
    rows = row_calls.get("row_exchange")
    execution.report_state(READING)
    training = open_batches(execution, plan.train, TRAINING)
    evaluating = None
    if (data := plan.evaluation) is not None:
        evaluating = open_batches(execution, data, EVALUATION)
    for each in filter(None, (training, evaluating)):
        contexts.callback(each.close)
    order = open_order(plan, me, execution.options, contexts)
    communicators = open_communicators(plan, me, channel, order, local, contexts, rows)
    service, serve = open_service(plan, me, channel, order, rows), hooks.serve
    if service is not None and serve is not None:
        serve = _in_service_thread(serve, plan, me, devices)
    exchange = Exchange(me.name, channel, edges, plan.workers)
    first_workers, newest = open_backup(plan, me, exchange, order)
    node = kind(
        me.name,
        exchange,
        tables,
        {table.name: build_schedule(table.learning_rate) for table in me.tables}
        | {
            each.name: build_schedule(each.learning_rate) for each in plan.sparse_tables
        },
        training,
        evaluating,
        (me.step, me.evaluation),
        metrics.record,
        devices,
        shard=plan.pushed_rows(me.name),
        communicators=communicators,
        updates=updates_of(communicators),
        replicas=open_replicas(plan, me, channel, tables),
        service=service,
        first_workers=first_workers,
        newest=newest,
        has_own_steps=plan.worker_of(me.name) is not None,
        local_tables=frozenset(local),
        modes={table.name: table.mode for table in me.tables if table.mode is not None}
        | {
            each.name: each.mode for each in plan.sparse_tables if each.mode is not None
        },
        serve=serve,
        order=order,
        sent_back=find_sent_back(plan.step_edges, me),
        expected=[edge.id for edge in edges_ahead(plan.step_edges, me.name)],
        parts=plan.settings.train.microbatches,
        turns=me.turns,
        **row_calls,
    )
    return node, tables, local


def _in_service_thread(serve: Hook, plan: Plan, me: NodePlan, devices: Devices) -> Hook:
    """Return a hook `serve` that runs in a thread of its own."""

    def serve_in_thread(node: Node) -> None:
        with in_another_thread(plan, me, devices):
            serve(node)

    return serve_in_thread
