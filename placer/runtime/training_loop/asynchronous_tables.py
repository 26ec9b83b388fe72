"""Opens a node's side of asynchronous tables, and synchronizes nodes after a drain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from placer.channel.interface import Channel
from placer.checkpoint.manifest import Progress, StepStatistics
from placer.errors import RunError
from placer.plan.plan import Edge, NodePlan, Plan, Table
from placer.plan.settings.training.update_modes import Geo, Mode
from placer.runtime.asynchronous.backup_workers import FirstWorkers, NewestStep
from placer.runtime.asynchronous.delta_exchange import DeltaExchange
from placer.runtime.asynchronous.local_values import LocalValues, Part
from placer.runtime.asynchronous.peer_gradients import PeerGradients
from placer.runtime.asynchronous.pulled_sums import PulledSums
from placer.runtime.asynchronous.pulled_versions import PulledVersions
from placer.runtime.asynchronous.recorded_order import Order, order_file
from placer.runtime.asynchronous.replicas import Copies, Replicas
from placer.runtime.asynchronous.service import Service
from placer.runtime.asynchronous.step_workers import StepWorkers
from placer.runtime.asynchronous.worker_end import WorkerEnd
from placer.runtime.control.barrier import AHEAD, DRAINED, barrier
from placer.runtime.control.execution import Execution
from placer.runtime.control.option_checks import has_order
from placer.runtime.control.options import Options
from placer.runtime.exchange.exchange import Exchange
from placer.runtime.metrics.statistics import encode_statistics, finalizers_of
from placer.runtime.metrics.stream import MetricsStream
from placer.tables.block_table import BlockTable

if TYPE_CHECKING:
    from placer.runtime.exchange.row_exchange import RowExchange


@dataclass(frozen=True, slots=True)
class Drained:
    """The state after a drain.

    Attributes:
        slowest: the last step that all workers have finished.
        last: the last step of the run, the pass or the lanes of any worker, as far as known.
        acts: whether any node knows of an action that all nodes must take now.
        has_failed: whether a lane of any node has failed.
        steps: the last finished step of each worker; empty if training is synchronous.
    """

    slowest: int
    last: int = 0
    acts: bool = False
    has_failed: bool = False
    steps: Mapping[str, int] = field(default_factory=dict)

    @property
    def ends(self) -> bool:
        """Whether no worker can begin a further step before all nodes have decided how the run
        goes on."""
        return self.has_failed or self.slowest == self.last

    @property
    def is_uneven(self) -> bool:
        """Whether any worker is ahead of the slowest worker."""
        return any(step > self.slowest for step in self.steps.values())


def meet(
    execution: Execution, done: int, last: int, *, acts: bool, has_failed: bool
) -> Drained:
    """Wait until all nodes have drained.

    Args:
        execution: the node's run.
        done: the node's last finished step.
        last: the last step that it can train before a decision of all nodes.
        acts: whether this node knows of an action that all nodes must take.
        has_failed: whether one of its lanes has failed.
    """
    plan = execution.plan
    own = {"step": done, "last": last, "acts": acts, "failed": has_failed}
    reports = barrier(plan, execution.channel, own, DRAINED)
    by_node = {n.name: r for n, r in zip(plan.nodes, reports, strict=True)}
    steps = {worker: int(by_node[worker]["step"]) for worker in _workers(plan)}
    return Drained(
        min(steps.values()),
        min(int(by_node[worker]["last"]) for worker in steps),
        any(each["acts"] for each in reports),
        any(each["failed"] for each in reports),
        steps,
    )


def gather_ahead(
    execution: Execution, metrics: MetricsStream, drained: Drained, *, stops: bool
) -> tuple[StepStatistics, ...]:
    """Gather the metrics of steps that only some workers have finished, from all nodes.
    If the run `stops`, the stream of metrics ends after the common steps."""
    plan, me = execution.plan, execution.me.name
    finalizers = finalizers_of(plan)
    own = [
        StepStatistics(me, step, encode_statistics(statistics, finalizers))
        for step, statistics in metrics.recent(drained.slowest)
    ]
    if stops and metrics.combiner is not None:
        metrics.combiner.end_after(drained.slowest)
    report = {"ahead": msgspec.to_builtins(own)}
    reports = barrier(plan, execution.channel, report, AHEAD)
    if stops and metrics.combiner is None and me in drained.steps:
        metrics.end_after(drained.steps[me])
    try:
        gathered = [
            msgspec.convert(each["ahead"], list[StepStatistics]) for each in reports
        ]
    except (KeyError, msgspec.ValidationError):
        raise RunError(
            "a node sent metrics in the format of another version of placer",
            hint="run the same version of placer on every node",
        ) from None
    return tuple(each for of_node in gathered for each in of_node)


def steps_of_workers(plan: Plan, progress: Progress | None) -> dict[str, int]:
    """Return the last step of each worker at a checkpoint, or 0 without one. If the checkpoint
    is from other workers, it is the slowest worker's step for all."""
    workers = _workers(plan)
    if progress is None:
        return dict.fromkeys(workers, 0)
    if set(progress.workers) == set(workers):
        return {worker: progress.workers[worker] for worker in workers}
    return dict.fromkeys(workers, progress.step)


def open_communicators(
    plan: Plan,
    me: NodePlan,
    channel: Channel,
    order: Order,
    local: Mapping[str, LocalValues],
    contexts: ExitStack,
    rows: RowExchange | None = None,
) -> dict[int, WorkerEnd]:
    """Open the `WorkerEnd` of each asynchronous table; return them by edge number.

    Args:
        plan: the plan.
        me: the node in the plan.
        channel: the node's channel.
        order: records or replays the order of events.
        local: the worker's own values in the mode `geo`, by table name.
        contexts: closing it ends their threads.
        rows: the node's side of edges that carry rows by key; None without sparse tables.
    """
    found: dict[int, WorkerEnd] = {}
    for push, pull, table, mode in _exchanges(plan):
        if me.name not in push.sources:
            continue
        end: WorkerEnd
        if isinstance(mode, Geo):
            assert pull is not None, push.id
            values, parts = _find_parts(me, table, local)
            end = DeltaExchange(channel, pull, push, mode, order, values, parts)
        elif pull is None:
            end = PeerGradients(channel, push, mode, order)
        else:
            kind = PulledSums if _brings_sums(pull) else PulledVersions
            end = kind(channel, pull, push, mode, order)
        for edge in (push, pull):
            if edge is not None:
                found[edge.id] = end
        contexts.callback(end.close)
    for ask, give, push, mode in _row_exchanges(plan):
        if me.name in push.sources:
            from placer.runtime.asynchronous.asked_rows import AskedRows

            assert rows is not None
            end = AskedRows(rows, ask, give, push, mode)
            found |= dict.fromkeys((ask.id, give.id, push.id), end)
    return found


def updates_of(communicators: Mapping[int, WorkerEnd]) -> list[WorkerEnd]:
    """Return each `WorkerEnd` with a worker-side update."""
    return [
        end
        for end in dict.fromkeys(communicators.values())
        if isinstance(end, PulledSums | PeerGradients)
    ]


def _find_parts(
    me: NodePlan, served: Table, local: Mapping[str, LocalValues]
) -> tuple[LocalValues, list[Part]]:
    """Return a worker's own values of a server's table, and the part for each block."""
    for table in me.tables:
        if table.local:
            index = {block.parameter: i for i, block in enumerate(table.blocks)}
            if served.blocks[0].parameter in index:
                parts = [
                    Part(index[block.parameter], block.start, block.stop)
                    for block in served.blocks
                ]
                return local[table.name], parts
    raise AssertionError(served.name)


def open_service(
    plan: Plan,
    me: NodePlan,
    channel: Channel,
    order: Order,
    rows: RowExchange | None = None,
) -> Service | None:
    """Return the server side of a node's asynchronous tables; None without such tables."""
    tables = [
        (pull, push, mode)
        for push, pull, _, mode in _exchanges(plan)
        if pull is not None and me.name in push.targets
    ]
    sparse = [
        (ask, give, push)
        for ask, give, push, _ in _row_exchanges(plan)
        if me.name in push.targets
    ]
    if not tables and not sparse:
        return None
    read_keys = None if rows is None else rows.read_keys
    return Service(channel, tables, order, sparse, read_keys)


def open_replicas(
    plan: Plan, me: NodePlan, channel: Channel, tables: Mapping[str, BlockTable]
) -> Replicas | None:
    """Return the tables with a worker-side update, and those of a worker's own state;
    None without such tables."""
    own: dict[str, Copies] = {}
    for edge in plan.step_edges:
        if edge.declared and edge.declared.updates_workers and me.name in edge.targets:
            name = _table_of_gradient(me, edge).name
            own[name] = Copies(tables[name], edge.targets, trains=True)
    for table in me.tables:
        if table.per_worker:
            holders = plan.state_holders(table.name)
            own[table.name] = Copies(tables[table.name], holders, trains=False)
    return Replicas(channel, own) if own else None


def open_backup(
    plan: Plan, me: NodePlan, exchange: Exchange, order: Order
) -> StepWorkers:
    """Return the object that decides which workers the node's steps wait for."""
    offers = [e for e in plan.step_edges if e.declared and e.declared.is_offered]
    sums = [each for each in plan.step_edges if each.takes_first]
    servers = plan.servers_of_fastest
    if me.name in servers:
        shards = {name: plan.pushed_rows(name) for name in sums[0].sources}

        def rows_of(count: int) -> dict[str, int]:
            parts = plan.settings.train.microbatches
            return {name: each.num_rows(count, parts) for name, each in shards.items()}

        own = [each for each in sums if me.name in each.targets]
        return FirstWorkers(exchange, own, servers, rows_of, order)
    if not any(me.name in each.sources for each in sums):
        return StepWorkers()
    by_server = {
        server: [each.id for each in offers if server in each.sources]
        for server in servers
    }
    return NewestStep(exchange.channel, by_server, order)


def open_order(
    plan: Plan, me: NodePlan, options: Options, contexts: ExitStack
) -> Order:
    """Open the order of a node, to record or replay it as the options say. Its file is
    closed with `contexts`. Raises PlacerError for files that cannot be used."""
    if not has_order(plan, me.name):
        return Order()
    record, replay = options.record_order, options.replay_order
    order = Order(
        None if record is None else order_file(record, me.name),
        None if replay is None else order_file(replay, me.name),
        plan.digest,
        continues=options.restarts > 0,
    )
    contexts.push(lambda kind, error, trace: order.close(ended=error is None))
    return order


def _workers(plan: Plan) -> list[str]:
    """Return the nodes that train asynchronously, in order: workers and their companions."""
    names = (node.name for node in plan.nodes)
    return [name for name in names if plan.worker_of(name) is not None]


def _exchanges(plan: Plan) -> Iterator[tuple[Edge, Edge | None, Table, Mode]]:
    """Yield the push edge, the answer edge if any, the table and the mode of each exchange."""
    dtypes = {parameter.name: parameter.dtype for parameter in plan.parameters}
    answers = {
        (edge.sources, edge.targets, edge.group, edge.values[0].dtype): edge
        for edge in plan.step_edges
        if edge.declared and edge.declared.is_answer and not edge.is_by_key
    }
    for push in plan.step_edges:
        if not push.is_push or push.is_by_key:
            continue
        between = push.targets, push.sources, push.group
        brings = push  # the edge with the gradients that update the table
        if push.declared and push.declared.handling == "adds":
            brings = answers[*between, push.values[0].dtype]
        table = _table_of_gradient(plan.node(brings.targets[0]), brings)
        dtype = dtypes[table.blocks[0].parameter]
        assert table.mode is not None, push.id
        yield push, answers.get((*between, dtype)), table, table.mode


def _row_exchanges(plan: Plan) -> Iterator[tuple[Edge, Edge, Edge, Mode]]:
    """Yield the edges of keys, rows and gradients of asynchronous sparse tables, and the mode."""
    modes = {table.name: table.mode for table in plan.sparse_tables}
    free = [e for e in plan.step_edges if e.is_by_key and e.is_asynchronous]
    for push in free:
        if not push.is_push:
            continue
        of_tables = {
            edge.declared.moves: edge
            for edge in free
            if edge.declared and edge.sparse_tables == push.sparse_tables
        }
        mode = modes[push.values[0].tables[0]]
        assert mode is not None, push.id
        yield of_tables["keys"], of_tables["rows"], push, mode


def _brings_sums(edge: Edge) -> bool:
    return edge.declared is not None and edge.declared.moves == "sums"


def _table_of_gradient(node: NodePlan, edge: Edge) -> Table:
    """Return the node's table that the gradients of an edge update."""
    gradients = {value.result for value in edge.values}
    return next(
        table
        for table in node.tables
        if table.mode is not None and table.blocks[0].gradient in gradients
    )
