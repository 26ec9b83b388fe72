"""plan.json: everything that the runtime needs to know about a build besides its programs.

It also records the choices of the compiler.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

import placer
from placer.errors import BuildError
from placer.place.ids import format_nodes, node_hint
from placer.place.layouts import Layout
from placer.place.layouts.companions import worker_of
from placer.place.layouts.partition import RowShard, row_shard
from placer.place.layouts.ranges import Flat, Ranges
from placer.place.layouts.sparse import server_partitions
from placer.place.node_kinds import WORKER, NodeId
from placer.place.types import ITEM_BYTES
from placer.plan.check import MEMORY as MEMORY
from placer.plan.check import check_plan
from placer.plan.exchanges import EXCHANGES, Exchange, ExchangeName
from placer.plan.folder import (
    damaged_error,
    edited_error,
    find_unknown_files,
    read_file,
)
from placer.plan.serving import Serving
from placer.plan.settings.data.classes import Classes
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.fields import Count, Size, ValueName
from placer.plan.settings.run import RunSettings
from placer.plan.settings.sparse.shared_index import shares_index
from placer.plan.settings.sparse.table import SparseTable as SparseSettings
from placer.plan.settings.training.initializers import Init
from placer.plan.settings.training.metrics import Finalizer
from placer.plan.settings.training.schedules import Rate
from placer.plan.settings.training.slicing import Block
from placer.plan.settings.training.transformations import Transformation
from placer.plan.settings.training.update_modes import Geo, Mode
from placer.system.files.nearest_path import path_hint
from placer.system.files.owners import check_folder
from placer.system.files.utf8 import check_utf8

VERSION = 3
OF_RUN = "build"
"""The folder name of the build inside a run folder."""
RUNS = Path("runs")
"""The folder in which `placer train` creates run folders."""
FILE = "plan.json"
SOURCES = "sources.json"
MODEL = "model.txt"
"""The prediction graph for one process. A build has this file if its spec has outputs."""
MAX_PLAN_BYTES = 1 << 28
"""The largest size of plan.json and of sources.json, in bytes."""
BASE_PORT = 27600
"""Node k of a plan listens on this port + k by default. The port is below the range of
outgoing ports of common operating systems."""


DATA = "PLACER_DATA"
"""The environment variable with the path of the data folder on this machine."""


class PlanStruct(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The base of all plan structs. Decoding rejects unknown fields.

    Fields with their default value are not written. msgspec compares defaults by
    identity, so a default must be None, a bool, 0, 1 or empty.
    """


class Counted(NamedTuple):
    """What is counted for keys besides their occurrences: scores or times, for some tables."""

    what: Literal["scores", "times"]
    tables: tuple[str, ...]


class EdgeValue(PlanStruct, frozen=True):
    """One value of an edge.

    Ranges count elements flattened in C order.

    Attributes:
        operand: the name of the sent value.
        result: the name of the received value.
        dtype: the dtype.
        shape: the global shape.
        layouts: the layouts at the senders and at the receivers.
        start: the first element to send, if only a block is sent.
        stop: the end of the block.
        whole: the joined value, if the receiver joins blocks.
        at: the first element of the result within `whole`.
        numel: the number of elements of `whole`.
    """

    operand: ValueName
    result: ValueName
    dtype: str
    shape: tuple[Size | Literal["batch", "keys"], ...]
    layouts: tuple[Layout, Layout]
    start: Size | None = None
    stop: Size | None = None
    whole: ValueName | None = None
    at: Size = 0
    numel: Size = 0
    flat: Flat | None = None
    """The range of the value in its group, if one side has layout F."""
    table: ValueName | None = None
    """The sparse table, for a value with one row per key."""
    counted: tuple[Literal["scores", "times"], ...] = ()
    """For keys: the statistics that travel with the keys and their counts."""
    inputs: tuple[ValueName, ...] = ()
    """For keys sent one step ahead: the names of the key inputs, followed for each table by the
    inputs with the score and time of each row."""
    others: tuple[ValueName, ...] = ()
    """For keys: further tables over the same keys."""
    counted_for: tuple[tuple[ValueName, ...], ...] = ()
    """With further tables: those that use each of `counted`."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The sparse tables of keys, rows or gradients."""
        return () if self.table is None else (self.table, *self.others)

    @property
    def statistics(self) -> Iterator[Counted]:
        """What travels with keys and their counts, in the order of a message."""
        of = self.counted_for if self.others else (self.tables,) * len(self.counted)
        return map(Counted, self.counted, of)

    @property
    def size(self) -> int:
        """The number of elements of a value without rows."""
        return math.prod(d for d in self.shape if isinstance(d, int))


class Edge(PlanStruct, frozen=True):
    """The messages from `sources` to `targets` in one step or evaluation batch.

    Attributes:
        id: the number of the edge.
        sources: the sending nodes.
        targets: the receiving nodes.
        values: the values in each message. If one side of a value has layout F, the same
            holds for all values.
        nbytes: the bytes of all messages in one step or batch. If `every` exceeds 1, the
            average per step. Keys are assumed to be distinct.
        once: (evaluation) send only before the first batch.
        ring: each node sends only to the next node; sources equal targets.
        stable: the values are parameters, which the senders do not change while a
            receiver may read them.
        exchange: the exchange (`placer.plan.exchanges`) that defines the values.
        group: the optimizer group of an asynchronous exchange.
        first: how many workers a step waits for, with backup workers.
        sent_back: servers send these parameters during the previous step, as they
            update them.
        bucket: the position among the gradient messages of a step. They leave in this
            order during the backward pass.
        follows: the message shares the channel limit of the previous bucket with the same
            nodes.
        every: a worker sends one message in this many steps.
        companions: (asynchronous) each worker exchanges messages only with the heter
            node that computes for it.
    """

    id: Count
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    values: tuple[EdgeValue, ...]
    nbytes: Size
    once: bool = False
    ring: bool = False
    stable: bool = False
    exchange: ExchangeName | None = None
    group: int | None = None
    first: Count | None = None
    sent_back: bool = False
    bucket: Size | None = None
    follows: bool = False
    every: Count = 1
    companions: bool = False

    @property
    def declared(self) -> Exchange | None:
        """The declaration of the exchange; None for plain messages."""
        return EXCHANGES[self.exchange] if self.exchange else None

    @property
    def is_by_key(self) -> bool:
        """Whether the edge carries keys or rows of sparse tables."""
        return self.declared is not None and self.declared.is_by_key

    @property
    def sparse_tables(self) -> frozenset[str]:
        """The sparse tables whose keys, rows or gradients it carries."""
        return frozenset(name for value in self.values for name in value.tables)

    @property
    def is_push(self) -> bool:
        """Whether workers send gradients or differences of asynchronous tables here."""
        exchange = self.declared
        return exchange is not None and exchange.is_push and self.is_asynchronous

    @property
    def takes_first(self) -> bool:
        """Whether a step uses only the values of the fastest workers."""
        return self.declared is not None and self.declared.takes_first

    @property
    def is_asynchronous(self) -> bool:
        """Whether the exchange is asynchronous."""
        exchange = self.declared
        return exchange is not None and exchange.is_free(self.group is not None)

    @property
    def is_flat(self) -> bool:
        """Whether one side of the values has layout F."""
        return bool(self.values) and "F" in self.values[0].layouts

    def ranges(self, value: EdgeValue) -> Ranges:
        """Return the ranges of a value on the side with layout F."""
        assert value.flat is not None, value.result
        nodes = self.targets if value.layouts[1] == "F" else self.sources
        return Ranges(value.flat, value.size, ITEM_BYTES[value.dtype], len(nodes))


def edges_ahead(edges: Sequence[Edge], node: str) -> list[Edge]:
    """Return the edges that bring parameters of the next step while a node still runs this
    step. Only nodes that send gradients in buckets have such edges."""
    ahead = [edge for edge in edges if edge.sent_back and node in edge.targets]
    sends_buckets = any(
        edge.bucket is not None and node in edge.sources for edge in edges
    )
    return ahead if sends_buckets else []


class Read(PlanStruct, frozen=True):
    """An input that a node reads, and the rows of the global batch that it reads."""

    value: ValueName
    input: str
    shard: RowShard


class Metric(PlanStruct, frozen=True):
    """A metric that a node records.

    Partial statistics (P) are summed over the recording nodes in node order. Other
    statistics come from the first node.

    Attributes:
        layout: the layout of the statistic.
        final: the finalizer (`placer.plan.settings.training.metrics`).
    """

    layout: Layout
    final: Finalizer


class Output(PlanStruct, frozen=True):
    """An output of a prediction.

    Attributes:
        name: the name.
        dtype: the dtype.
        shape: the shape of one row.
        inputs: the inputs that the output depends on.
        classes: the classes, if the output scores classes.
    """

    name: ValueName
    dtype: str
    shape: tuple[Size, ...]
    inputs: tuple[str, ...]
    classes: Classes | None = None


class NodePhase(PlanStruct, frozen=True):
    """The inputs and results of one node in a training step, evaluation or prediction.

    Attributes:
        reads: the inputs that the node reads.
        metrics: the recorded metrics. Training always records the loss, which the
            runtime checks for NaN and infinity.
        outputs: the rows of each prediction output that the node returns.
    """

    reads: tuple[Read, ...] = ()
    metrics: dict[ValueName, Metric] = {}
    outputs: dict[ValueName, RowShard] = {}


class Table(PlanStruct, frozen=True, kw_only=True):
    """The parameters or blocks of one optimizer on one node.

    Attributes:
        name: the name of the table.
        rule: the update rule; None if the parameters are not trained.
        hyper: the hyperparameters of the rule.
        learning_rate: the learning rate; None for an optax optimizer that takes none.
        blocks: the blocks that the table stores.
        mode: the update mode of asynchronous workers; None for synchronous training.
        local: the table holds a worker's own values of parameters on servers.
        per_worker: each worker has such a table with its own state, and a drain copies the
            first worker's to the others.
        in_place: updates may overwrite values that other nodes have views of, because all
            readers have finished. `placer.compiler.memory.in_place` proves it from the
            graph. A node cannot check this flag.
        devices: the storage: `cpu:0` for host memory, or one of the node's `computes`.
        transformation: the number of the optax optimizer in `Plan.transformations`, if the
            rule is `optax`.
        averages: evaluations and exports use other values than those that are trained, by
            the `eval_params` of the optax optimizer.
    """

    name: str
    rule: str | None = None
    hyper: dict[str, Any] = {}
    learning_rate: Rate | None
    blocks: tuple[Block, ...]
    mode: Mode | None = None
    local: bool = False
    per_worker: bool = False
    in_place: bool = False
    devices: str
    transformation: str = ""
    averages: bool = False


class NodePlan(PlanStruct, frozen=True, kw_only=True):
    """One node: a process of the run, or one of its threads.

    Attributes:
        name: the name, such as `worker:0`.
        program: the path of the node program; several nodes may share it.
        devices: the number of devices of each kind.
        step, evaluation, prediction: the inputs and results in each phase.
        tables: the tables that the node stores.
        computes: the sets of devices that compute together, by their name in programs:
            `gpu:0-1` is `gpu:0` and `gpu:1`. Empty if the node computes nothing.
        turns: the order of tasks and microbatches in a step, such as `forward.0`.
        functions: the segment of a training step that each jitted function of the program
            computes. The ops of a segment have this number as attribute `segment` in
            `graph.txt`.
        table_bytes: the size of the tables and of the gradient sums that a server keeps
            for workers. This and the next two fields exclude sparse tables.
        activation_bytes: the peak size of the values of a step.
        device_bytes: the peak size of tables and values on each device.
        memory: the host memory in bytes that the spec grants the node's process, if any.
        device_memory: the memory in bytes of each accelerator, by device kind, if the spec
            gives it.
        flops: the declared FLOPs of one training step.
        replicated_flops: the part of `flops` that repeats work of other nodes.
        exchange_flops: the part of `flops` spent on exchanges.
    """

    name: str
    program: str
    devices: dict[str, int]
    step: NodePhase
    evaluation: NodePhase | None = None
    prediction: NodePhase | None = None
    tables: tuple[Table, ...] = ()
    computes: dict[str, tuple[str, ...]] = {}
    turns: tuple[str, ...] = ()
    functions: dict[ValueName, Size] = {}
    table_bytes: Size = 0
    activation_bytes: Size = 0
    device_bytes: dict[str, Size] = {}
    memory: Size | None = None
    device_memory: dict[str, Size] = {}
    flops: Size = 0
    replicated_flops: Size = 0
    exchange_flops: Size = 0

    @property
    def reads_rows(self) -> bool:
        """Whether the node reads rows in any phase, so that it needs the data."""
        phases = (self.step, self.evaluation, self.prediction)
        return any(phase is not None and phase.reads for phase in phases)

    @property
    def uses_jax(self) -> bool:
        """Whether the node computes values, or updates parameters with optax."""
        return bool(self.computes) or any(each.transformation for each in self.tables)


class Parameter(PlanStruct, frozen=True, kw_only=True):
    """A whole parameter.

    `holders` are the tables that together store all its blocks, without replicas.
    """

    name: ValueName
    dtype: str
    shape: tuple[Size, ...]
    init: Init
    trainable: bool = True
    state: bool = False
    """Training updates the value without an optimizer, such as running statistics."""
    holders: tuple[tuple[str, str, int], ...]
    """(node, table, index of the block in the table), in the order of the elements."""
    short_name: ValueName | None = None
    """The name in programs, if a part of `name` has more than 64 characters."""


class SparseTable(PlanStruct, frozen=True, kw_only=True):
    """A parameter with one row per key.

    Attributes:
        settings: the settings of the table.
        dtype: the dtype of the rows.
        learning_rate: the learning rate.
        trainable: whether the rows are trained.
        mode: the update mode of asynchronous workers; None for synchronous training.
        holders: the nodes that store equal, consecutive shares of the partitions, in order.
        rows: the expected number of rows, if the spec gives it.
        over: the tables over the same keys, this one included, in the order of programs;
            empty for a table with keys of its own.
        index_of: the table over the same keys whose index it shares; None for an index of its
            own. It always has rows for the same keys.
    """

    settings: SparseSettings
    dtype: str
    learning_rate: Rate = 0.0
    trainable: bool = True
    mode: Mode | None = None
    holders: tuple[str, ...]
    rows: Size | None = None
    over: tuple[ValueName, ...] = ()
    index_of: ValueName | None = None

    @property
    def name(self) -> str:
        return self.settings.name

    def can_share_index(self, other: SparseTable) -> bool:
        """Whether the table and another one over the same keys and statistics always have rows for
        the same keys."""
        return (
            shares_index(self.settings, other.settings)
            and (self.dtype, self.holders) == (other.dtype, other.holders)
            and self.trainable
            and other.trainable
        )

    def partitions_of(self, node: str) -> range:
        """Return the partitions that a holder stores."""
        index, partitions = self.holders.index(node), self.settings.partitions
        return server_partitions(index, len(self.holders), partitions)


class Choice(PlanStruct, frozen=True):
    """A decision of the compiler, or an op that it inserted, with the reason."""

    what: str
    why: str


class Plan(PlanStruct, frozen=True, kw_only=True, dict=True):
    """The content of plan.json."""

    version: int
    placer: str
    name: str
    settings: RunSettings
    columns: tuple[Column, ...]
    train: RowSource
    evaluation: RowSource | None = None
    prediction: RowSource | None = None
    outputs: tuple[Output, ...] = ()
    nodes: tuple[NodePlan, ...]
    step_edges: tuple[Edge, ...] = ()
    evaluation_edges: tuple[Edge, ...] = ()
    prediction_edges: tuple[Edge, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    sparse_tables: tuple[SparseTable, ...] = ()
    choices: tuple[Choice, ...] = ()
    parts: dict[ValueName, int] = {}
    """The number of parts of a batch that each traced function with `batch: replica`
    computes, by the name of the op."""
    untrained: dict[ValueName, tuple[str, ...]] = {}
    """The arrays that are not trained in the arguments of each traced function, such as
    `model.count int32[2]`, by the name of the op."""
    transformations: dict[str, Transformation] = {}
    """The optax optimizers, by the number of their optimizer group."""
    modules: tuple[str, ...] = ()
    serving: Serving | None = None
    """The model that the run publishes; None if it publishes nothing."""
    files: dict[str, Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")]]
    """The SHA-256 of each file by path, except plan.json and sources.json."""
    digest: str = ""
    """The SHA-256 of this plan as JSON, computed with an empty digest."""

    def __repr__(self) -> str:
        nodes = format_nodes(node.name for node in self.nodes)
        elements = sum(math.prod(p.shape) for p in self.parameters)
        nbytes = sum(edge.nbytes for edge in self.step_edges)
        count = len(self.sparse_tables)
        sparse = f", {count} sparse table{'s' * (count > 1)}" if count else ""
        return (
            f"<Plan of {self.name}: {nodes}; {elements:,} parameters{sparse};"
            f" {len(self.step_edges)} edges, {nbytes:,} bytes per step>"
        )

    @property
    def folder(self) -> Path | None:
        """The build folder, if `placer.compile` has written it. Not part of plan.json."""
        return self.__dict__.get("build_folder")

    def keep_folder(self, folder: Path) -> None:
        """Keep the path of the build folder, whose graph a notebook shows."""
        self.__dict__["build_folder"] = folder.resolve()

    def _repr_html_(self) -> str:
        """Return the picture of the placement, which a notebook shows."""
        return placer._html(self)

    def node(self, name: str) -> NodePlan:
        """Return a node by name. Raises BuildError for an unknown name."""
        for node in self.nodes:
            if node.name == name:
                return node
        names = [node.name for node in self.processes.get(name, self.nodes)]
        raise BuildError(
            f"this build has no node '{name}'", hint=node_hint(name, names)
        )

    @property
    def processes(self) -> dict[str, tuple[NodePlan, ...]]:
        """The nodes of each process by name. The first process has the control node."""
        found: dict[str, tuple[NodePlan, ...]] = {}
        for node in self.nodes:
            name = NodeId(node.name).process
            found[name] = (*found.get(name, ()), node)
        return found

    def process(self, name: str) -> tuple[NodePlan, ...]:
        """Return the nodes of a process. Raises BuildError for an unknown name."""
        try:
            return self.processes[name]
        except KeyError:
            process = NodeId(name).process
            if process in self.processes:
                message = f"'{name}' is a thread, not a process"
                raise BuildError(message, hint=f"run {process}") from None
            message = f"this build has no node '{name}'"
            hint = node_hint(name, self.processes)
            raise BuildError(message, hint=hint) from None

    def memory_for_rows(self, node: str) -> int | None:
        """Return how many bytes the sparse tables of a node may use.

        This is the memory of the process minus the peak of a step. Only one node of a
        process may have sparse tables. None if the spec sets no memory limit.
        """
        memory = self.node(node).memory
        if memory is None:
            return None
        nodes = self.processes[NodeId(node).process]
        return max(0, memory - device_peaks(nodes).get(MEMORY, 0))

    @property
    def control(self) -> str:
        """The name of the control node: the first."""
        return self.nodes[0].name

    @property
    def max_lead(self) -> float:
        """How many steps one node can be ahead of another when all stop together; 0 if all
        stop after the same step."""
        edges = self.step_edges
        if not edges or any(
            not edge.is_asynchronous and not edge.companions for edge in edges
        ):
            return 0
        modes = [table.mode for node in self.nodes for table in node.tables]
        modes += [table.mode for table in self.sparse_tables]
        if any(mode is not None and mode.in_rounds for mode in modes):
            return 0  # in rounds, all nodes stop after the same step
        bounds = [mode.bound for mode in modes if mode is not None]
        return 1 + min((b for b in bounds if b is not None), default=math.inf)

    @property
    def is_repeatable(self) -> bool:
        """Whether a repeated run has the same bits: nothing depends on timing."""
        modes = [table.mode for node in self.nodes for table in node.tables]
        modes += [table.mode for table in self.sparse_tables]
        in_rounds = all(mode.in_rounds for mode in modes if mode is not None)
        return in_rounds and not self.has_backup

    @property
    def staleness_bound(self) -> int | None:
        """The largest possible staleness of a gradient, or None if unbounded.

        Staleness counts the steps of other workers that servers applied after the worker
        pulled its parameters.
        """
        modes = [table.mode for node in self.nodes for table in node.tables]
        modes += [table.mode for table in self.sparse_tables]
        # Differences (geo) have no staleness.
        bounds = [m.bound for m in modes if m is not None and not isinstance(m, Geo)]
        if not bounds or None in bounds:
            return None
        # Each other worker adds the steps from `bound` + 1 before to `bound` after this
        # worker's step.
        return (2 * max(filter(None, bounds), default=0) + 1) * (self.workers - 1)

    @property
    def is_synchronous(self) -> bool:
        """Whether all nodes stop or save after the same step."""
        return self.max_lead == 0

    def pushed_rows(self, node: str) -> RowShard:
        """Return the rows of a step that a node's pushed gradients cover.

        A heter node counts for the worker it computes for. Other nodes return all rows.
        """
        for nodes, index in self._computing(node):
            return row_shard(nodes, index, self.workers)
        return RowShard((0,), 1)

    def worker_of(self, node: str) -> str | None:
        """Return the worker whose steps a node follows: itself or its companion.

        None for other nodes, and if the workers wait for each other in every step.
        """
        workers = [each.name for each in self.nodes if NodeId(each.name).kind == WORKER]
        for nodes, index in self._computing(node):
            return worker_of(nodes, index, workers)
        return None

    def companions(self, node: str) -> tuple[str, ...]:
        """Return the nodes that stop at the same step as a node: itself and its
        companions."""
        worker = self.worker_of(node)
        if worker is None:
            return (node,)
        names = [each.name for each in self.nodes]
        return tuple(name for name in names if self.worker_of(name) == worker)

    def _computing(self, node: str) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield the asynchronous workers or heter nodes that contain a node, with the
        node's index."""
        for edge in self.step_edges:
            sides = (edge.sources, edge.targets) if edge.companions else (edge.sources,)
            is_push = edge.is_push or edge.takes_first
            if not (edge.companions or is_push):
                continue
            for side in sides:
                if node in side:
                    yield side, side.index(node)

    def state_holders(self, table: str) -> tuple[str, ...]:
        """Return the nodes that each keep their own state in a table of this name."""
        return tuple(
            node.name
            for node in self.nodes
            if any(each.per_worker and each.name == table for each in node.tables)
        )

    @property
    def servers_of_fastest(self) -> tuple[str, ...]:
        """The servers that sum the gradients of the fastest workers."""
        sums = [edge for edge in self.step_edges if edge.takes_first]
        names = (node.name for node in self.nodes)
        return tuple(x for x in names if any(x in edge.targets for edge in sums))

    @property
    def has_backup(self) -> bool:
        """Whether a step may skip stragglers (backup workers)."""
        return any(edge.takes_first for edge in self.step_edges)

    @property
    def workers(self) -> int:
        """The number of nodes of kind `worker`."""
        return sum(NodeId(node.name).kind == WORKER for node in self.nodes)


def device_peaks(nodes: Sequence[NodePlan]) -> dict[str, int]:
    """Return the peak size in bytes of values and tables on each device of a process.

    Assumes that all nodes of the process peak at the same time.

    Args:
        nodes: the nodes of the process, which share the devices.
    """
    total: dict[str, int] = {}
    for node in nodes:
        for device, nbytes in node.device_bytes.items():
            total[device] = total.get(device, 0) + nbytes
    return total


def neighbours(plan: Plan, process: str) -> frozenset[str]:
    """Return the processes that a process exchanges messages with."""
    found = {
        NodeId(neighbour).process
        for node in plan.processes[process]
        for neighbour in _neighbours_of_node(plan, node.name)
    }
    return frozenset(found - {process})


def _neighbours_of_node(plan: Plan, name: str) -> frozenset[str]:
    """Return the peers of a node on its edges, and the control node."""
    if name == plan.control:
        return frozenset(node.name for node in plan.nodes if node.name != name)
    found = {plan.control}
    for edge in (*plan.step_edges, *plan.evaluation_edges, *plan.prediction_edges):
        if edge.ring and name in edge.sources:
            at, count = edge.sources.index(name), len(edge.sources)
            found |= {edge.sources[at - 1], edge.sources[(at + 1) % count]}
            continue
        if name in edge.sources:
            found.update(edge.targets)
        if name in edge.targets:
            found.update(edge.sources)
            if edge.declared and edge.declared.moves == "sums":
                # At a drain, each receiver takes the sums of the first receiver.
                found |= _to_first(name, edge.targets)
    # With backup workers, the first server tells the others which workers a step takes.
    found |= _to_first(name, plan.servers_of_fastest)
    for table in plan.node(name).tables:
        if table.per_worker:
            found |= _to_first(name, plan.state_holders(table.name))
    return frozenset(found - {name})


def _to_first(name: str, nodes: Sequence[str]) -> Set[str]:
    """Return the peers of a node if the first of `nodes` sends to all others."""
    if name not in nodes:
        return frozenset()
    return {*nodes} if name == nodes[0] else {nodes[0]}


def _encode_node(value: object) -> str:
    if isinstance(value, NodeId):
        return str(value)
    raise NotImplementedError(type(value))


def to_json(plan: Plan) -> str:
    """Return the text of plan.json: indented, with the fields in their declared order.

    Equal plans have equal text.
    """
    return (
        msgspec.json.format(
            msgspec.json.encode(plan, enc_hook=_encode_node), indent=1
        ).decode()
        + "\n"
    )


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of plan.json, in the 2020-12 dialect."""
    schema = msgspec.json.schema(Plan)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def with_digest(plan: Plan) -> Plan:
    """Return the plan with its digest."""
    bare = msgspec.structs.replace(plan, digest="")
    return msgspec.structs.replace(plan, digest=sha256(to_json(bare).encode()))


def is_build(folder: Path) -> bool:
    """Whether a path is a folder with a plan."""
    return os.path.isfile(folder / FILE)  # returns False for a name that is too long


def is_build_or_run(path: Path) -> bool:
    """Return True for a build, and for the folder of a run, which contains a build."""
    return is_build(path) or is_build(path / OF_RUN)


def build_of(path: str) -> str:
    """Return the path of the build in the folder of a run. Return other paths as they are."""
    build = Path(path, OF_RUN)
    return str(build) if is_build(build) else path


def build_hint(folder: str | Path) -> str | None:
    """Return a hint for a missing build: the nearest build, or a list of a few builds."""
    return path_hint(folder, is_build_or_run, (RUNS,), build_of, lists=True)


def _hint_without_plan(folder: Path) -> str:
    if os.path.isfile(folder):
        return "run a spec with placer.train, or make a build of it with placer.compile"
    if is_build(folder / OF_RUN):
        return f"did you mean '{folder / OF_RUN}'?"
    return build_hint(folder) or "create one with: placer compile SPEC --out FOLDER"


def read_plan(folder: Path) -> Plan:
    """Read and check the plan and the files of a build folder.

    Raises BuildError if the folder is not a build, has changed or unknown files, contains
    links, or can be changed by other users. Also for another plan version, or an
    inconsistent plan (`check_plan`).
    """
    if not is_build(folder):
        raise BuildError(
            f"'{folder}' is not a build folder: it has no {FILE}",
            hint=_hint_without_plan(folder),
        )
    check_utf8(folder, BuildError)
    check_folder(folder)
    file = folder / FILE
    data = read_file(folder, FILE, limit=MAX_PLAN_BYTES)
    try:
        head = msgspec.json.decode(data)
        version = head.get("version") if isinstance(head, dict) else None
        if version != VERSION:
            raise BuildError(
                f"'{folder}' has plan version {version}, this placer reads {VERSION}",
                hint="compile the spec again",
            )
        plan = msgspec.convert(head, Plan, strict=True)
        if with_digest(plan).digest != plan.digest:
            raise edited_error(file)
        check_plan(plan, str(file))
    except (ValueError, RecursionError) as error:  # msgspec errors are ValueErrors
        raise damaged_error(file, error) from error
    check_files(folder, plan)
    return plan


def check_files(folder: Path, plan: Plan) -> None:
    """Raise BuildError if a file of the build was changed, or if unknown files exist.

    Python already runs the program, and its imports from the same folder, before this
    check: see `docs/reference/security.md`.
    """
    modules = (f"{module}.py" for module in plan.modules)
    for path in (*(node.program for node in plan.nodes), *modules):
        if path not in plan.files:
            raise BuildError(
                f"'{folder / FILE}' has no hash for '{path}', which nodes would run",
                hint="compile the spec again",
            )
    for path, expected in plan.files.items():
        read_file(folder, path, expected)
    read_sources(folder)
    for path in find_unknown_files(folder, {FILE, SOURCES, *plan.files}):
        raise BuildError(
            f"'{folder / path}' is not part of the build",
            hint="remove it: a program could import it",
        )


class CompileArguments(PlanStruct, frozen=True):
    """The arguments of `placer.compile` that made a build, besides the spec and `overrides`.

    Attributes:
        function: the function of a `.py` file that returns the program; empty for YAML.
        nodes: the given number of nodes of each kind.
        outputs: the given outputs of a prediction; None for those of the spec.
        code: whether Python files of the spec may run.
        publish: whether the build publishes, as `--publish` asks.
    """

    function: str = ""
    nodes: dict[str, Count] = {}
    outputs: tuple[str, ...] | None = None
    code: bool = True
    publish: bool = False


class Sources(PlanStruct, frozen=True):
    """The content of sources.json: positions of ops and keys in the spec.

    The plan has no hash of this file, because its content depends on the path of the
    build. Changing it affects only where data files are found, and positions in messages.

    Attributes:
        spec: the path of the spec, relative to the build folder.
        ops: the line and column of each op.
        data: the line and column of each key of `data`, such as `train.source`.
        lines: for each program and line number, the function and the op that an error on
            this line is about. For several ops, the first and the last in the spec.
        overrides: the keys set by `--set` or `overrides`, as `KEY=VALUE`.
        arguments: what else is needed to compile the spec again; None for a build of an
            older placer, of a Program that no function of a file returns, and of
            `single_process`.
    """

    spec: Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=4096)]
    ops: dict[ValueName, tuple[Count, Count]]
    data: dict[str, tuple[Count, Count]] = {}
    lines: dict[str, dict[Count, tuple[ValueName, ...]]] = {}
    overrides: tuple[str, ...] = ()
    arguments: CompileArguments | None = None


def data_root(build: Path) -> Path:
    """Return the folder for relative paths of data files.

    It is PLACER_DATA if set, else the folder of the spec. Raises BuildError as
    `read_sources`.
    """
    chosen = os.environ.get(DATA)
    return Path(chosen) if chosen else (build / read_sources(build).spec).parent


def read_sources(folder: Path) -> Sources:
    """Read sources.json. Raises BuildError if it cannot be read."""
    content = read_file(folder, SOURCES, limit=MAX_PLAN_BYTES)
    return decode_sources(content, folder / SOURCES)


def sources_to_json(sources: Sources) -> bytes:
    """Return the content of sources.json, with one op or line of a program per line."""
    return _one_entry_a_line(msgspec.structs.asdict(sources)) + b"\n"


def _one_entry_a_line(value: object, depth: int = 1) -> bytes:
    if not isinstance(value, dict) or not value:
        return msgspec.json.encode(value)
    line = b"\n" + b" " * depth
    entries = (
        b"%b: %b" % (msgspec.json.encode(str(key)), _one_entry_a_line(each, depth + 1))
        for key, each in value.items()
    )
    return b"{" + line + (b"," + line).join(entries) + line[:-1] + b"}"


def decode_sources(content: bytes, file: Path) -> Sources:
    """Decode the content of sources.json; `file` names it in errors.

    Raises BuildError if it cannot be decoded.
    """
    try:
        return msgspec.json.decode(content, type=Sources)
    except (ValueError, RecursionError) as error:  # msgspec errors are ValueErrors
        raise damaged_error(file, error) from error


class Positions(msgspec.Struct, frozen=True):
    """The positions of ops in sources.json; see `Sources`."""

    spec: str
    ops: dict[str, tuple[int, int]]


def decode_positions(content: bytes, file: Path) -> Positions:
    """Decode only the positions of ops in sources.json; `file` names it in errors.

    Raises BuildError if they cannot be decoded.
    """
    try:
        return msgspec.json.decode(content, type=Positions)
    except (ValueError, RecursionError) as error:  # msgspec errors are ValueErrors
        raise damaged_error(file, error) from error


def sha256(content: bytes) -> str:
    """Return the hash of a file's content, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
