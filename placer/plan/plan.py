"""plan.json: all that the runtime has to know of a build, and the compiler's choices.

Besides the node programs and graph.txt, it is all that the compiler passes on.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from placer.errors import BuildError
from placer.place.ids import format_nodes
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
from placer.plan.folder import edited_error, find_unknown_files, read_file
from placer.plan.settings.data.classes import Classes
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.fields import Count, Size, ValueName
from placer.plan.settings.run import RunSettings
from placer.plan.settings.sparse.table import SparseTable as SparseSettings
from placer.plan.settings.training.initializers import Init
from placer.plan.settings.training.metrics import Finalizer
from placer.plan.settings.training.schedules import Rate
from placer.plan.settings.training.slicing import Block
from placer.plan.settings.training.update_modes import Geo, Mode
from placer.system.files.nearest_path import path_hint
from placer.system.files.owners import check_folder
from placer.system.files.utf8 import check_utf8

VERSION = 3
OF_RUN = "build"
"""The folder of the build in the folder of a run."""
FILE = "plan.json"
SOURCES = "sources.json"
MODEL = "model.txt"
"""The graph of a prediction in one process; a build has it if its spec has outputs."""
MAX_PLAN_BYTES = 1 << 28
"""The largest size of plan.json and of sources.json, in bytes."""
BASE_PORT = 27600
"""Node k of a plan listens on this port + k by default. The port is below the range
that operating systems use for outgoing connections."""


DATA = "PLACER_DATA"
"""The environment variable that names the folder of the data on this machine."""


class PlanStruct(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The base of all parts of the plan; decoding one rejects unknown fields.

    Fields with their default are not written. msgspec finds them by identity, so a
    default is None, a bool, 0, 1 or empty: equal values of these are one object.
    """


class EdgeValue(PlanStruct, frozen=True):
    """One value of an edge: its names as sent and received, global type and layouts.

    `start` and `stop` are the range of the operand's elements to send, if that is only
    a block of it. If the receiver joins blocks, `whole` is the joined value, which has
    `numel` elements, and `at` is the first element that the result has in it. Ranges
    are of elements flattened in C order.
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
    """For a value of which one side has ranges, layout F: where it is in its group."""
    table: ValueName | None = None
    """For a value with a row for each key: the sparse table."""
    counted: tuple[Literal["scores", "times"], ...] = ()
    """For keys: what goes with them besides how often each occurs."""
    inputs: tuple[ValueName, ...] = ()
    """For keys that leave a step ahead: the values, as nodes read them, that they are
    collected from, with the times and scores of their rows behind the keys."""

    @property
    def size(self) -> int:
        """The number of elements, of a value without rows."""
        return math.prod(d for d in self.shape if isinstance(d, int))


class Edge(PlanStruct, frozen=True):
    """The messages of a step, or of an evaluation batch, from `sources` to `targets`.

    `once` edges of an evaluation have messages before the first batch only. `nbytes` is
    the number of bytes of all messages of one step or batch together. If one value is in
    ranges (layout F) on one side, all are; over a `ring`, each node then sends to the
    next one only, and sources and targets are the same. The senders do not change
    `stable` values of ranges as long as a receiver may use them: they are parameters.

    An edge of an `exchange` carries the values that its declaration names
    (`placer.plan.exchanges`), those of tables of a `group` if no node waits for a step of
    all others. `first` and `every` are the settings of the exchange; if a message comes once
    in `every` steps of a worker, `nbytes` are the part of one step. For keys, and rows by
    key, `nbytes` are those of keys that are all different. In each step but the last, keys
    of the next one leave on an edge whose values have `inputs`.

    In a step without lockstep `companions` are a worker and the heter node that computes
    for it: each sends to its own only.

    A server sends the parameters of a `sent_back` edge as it updates them in the step
    before, where there is one.

    The gradients of a step that go to servers in several messages have a `bucket`, a number
    from 0: the messages leave in this order, while the rest is computed. One that `follows`
    has a bucket before it, from the same nodes to the same nodes, of whose message it is a
    part for the bound of a channel.
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
        """The declaration of the exchange; None of plain messages."""
        return EXCHANGES[self.exchange] if self.exchange else None

    @property
    def is_by_key(self) -> bool:
        """Whether the edge carries keys or rows of sparse tables."""
        return self.declared is not None and self.declared.is_by_key

    @property
    def is_push(self) -> bool:
        """Whether the edge carries what tables without lockstep are updated by, from the
        workers."""
        exchange = self.declared
        return exchange is not None and exchange.is_push and self.is_asynchronous

    @property
    def takes_first(self) -> bool:
        """Whether a step takes the values of the workers that are first."""
        return self.declared is not None and self.declared.takes_first

    @property
    def is_asynchronous(self) -> bool:
        """Whether no node waits for a step of all others at this edge."""
        exchange = self.declared
        return exchange is not None and exchange.is_free(self.group is not None)

    @property
    def is_flat(self) -> bool:
        """Whether the values are in ranges, layout F, on one side."""
        return bool(self.values) and "F" in self.values[0].layouts

    def ranges(self, value: EdgeValue) -> Ranges:
        """Return the ranges of a value on the side on which it is in ranges."""
        assert value.flat is not None, value.result
        nodes = self.targets if value.layouts[1] == "F" else self.sources
        return Ranges(value.flat, value.size, ITEM_BYTES[value.dtype], len(nodes))


def edges_ahead(edges: Sequence[Edge], node: str) -> list[Edge]:
    """Return the edges that bring parameters of the next step to a node which has not
    finished this one: those that are sent back, if it sends gradients in buckets."""
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
    """A metric that a node records: its part of a statistic, and its finalizer.

    Partial statistics (P) are summed over the nodes that record them, in node order;
    any other statistic is that of the first node. `final` names the finalizer
    (`placer.plan.settings.training.metrics`).
    """

    layout: Layout
    final: Finalizer


class Output(PlanStruct, frozen=True):
    """An output of a prediction: its dtype, the shape of a row, the inputs of the source
    that it depends on, and the classes that it scores, if it does."""

    name: ValueName
    dtype: str
    shape: tuple[Size, ...]
    inputs: tuple[str, ...]
    classes: Classes | None = None


class NodePhase(PlanStruct, frozen=True):
    """The inputs and results of one node in a training step, an evaluation or a
    prediction: `outputs` are the rows of each output that it returns.

    `metrics` of a training step include the minimized loss, even if the spec does not
    list it: the runtime checks it for NaN and infinity.
    """

    reads: tuple[Read, ...] = ()
    metrics: dict[ValueName, Metric] = {}
    outputs: dict[ValueName, RowShard] = {}


class Table(PlanStruct, frozen=True, kw_only=True):
    """The parameters, or blocks of them, of one optimizer on one node.

    `rule` is None for parameters that are not trained. `mode` says how the workers agree
    on updates, if they do not go in lockstep. A `local` table has a worker's own values of
    parameters that servers store. `in_place` says that updates may
    overwrite the values while other nodes have views of them, since all readers have
    finished. The compiler proves that from the graph (`placer.compiler.memory.in_place`); a
    node cannot check it, and only the plan's digest protects it from accidental
    changes.
    """

    name: str
    rule: str | None = None
    hyper: dict[str, Any] = {}
    learning_rate: Rate
    blocks: tuple[Block, ...]
    mode: Mode | None = None
    local: bool = False
    in_place: bool = False
    devices: str
    """Where the table is stored: `cpu:0` for host memory, or one of the node's
    `computes`."""


class NodePlan(PlanStruct, frozen=True, kw_only=True):
    """One node: a process of the run, or one of its threads.

    `program` is the path of the file that it runs, which other nodes may share. `turns`
    is the order in which it runs the tasks of its program for the microbatches of a
    step (`forward.0`). `computes` are the sets of devices that compute together, by
    the name that programs write (`gpu:0-1`), each as a list (`gpu:0`, `gpu:1`); it is
    empty if the node computes nothing. FLOPs are declared, for one training step. `table_bytes` is the size of the tables, and of
    sums that a server keeps for workers which update by themselves, `activation_bytes`
    the peak of the values of a step, and `device_bytes` the peak of both on each
    device. None of them counts sparse tables. `memory` is how many bytes of host memory
    the spec gives the process of the node, if it does.
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
    table_bytes: Size = 0
    activation_bytes: Size = 0
    device_bytes: dict[str, Size] = {}
    memory: Size | None = None
    flops: Size = 0
    replicated_flops: Size = 0
    exchange_flops: Size = 0

    @property
    def reads_rows(self) -> bool:
        """Whether the node reads rows in any phase, so that it needs the data."""
        phases = (self.step, self.evaluation, self.prediction)
        return any(phase is not None and phase.reads for phase in phases)


class Parameter(PlanStruct, frozen=True, kw_only=True):
    """A whole parameter.

    `holders` are the tables that together store all its blocks, without replicas.
    """

    name: ValueName
    dtype: str
    shape: tuple[Size, ...]
    init: Init
    trainable: bool = True
    holders: tuple[tuple[str, str, int], ...]
    """(node, table, index of the block in the table), in the order of the elements."""


class SparseTable(PlanStruct, frozen=True, kw_only=True):
    """A parameter with a row for each key.

    `mode` says how the workers agree on updates, if they do not go in lockstep.
    `holders` are the nodes that have its partitions, each as many neighboring ones, in
    their order. `rows` is the number of rows that the spec expects.
    """

    settings: SparseSettings
    dtype: str
    learning_rate: Rate = 0.0
    trainable: bool = True
    mode: Mode | None = None
    holders: tuple[str, ...]
    rows: Size | None = None

    @property
    def name(self) -> str:
        return self.settings.name

    def partitions_of(self, node: str) -> range:
        """Return the partitions that a node has, which is one of the holders."""
        index, partitions = self.holders.index(node), self.settings.partitions
        return server_partitions(index, len(self.holders), partitions)


class Choice(PlanStruct, frozen=True):
    """Something that the compiler chose or inserted, and why."""

    what: str
    why: str


class Plan(PlanStruct, frozen=True, kw_only=True):
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
    modules: tuple[str, ...] = ()
    files: dict[str, Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")]]
    """The sha256 of each file of the build but plan.json and sources.json, by path."""
    digest: str = ""
    """The sha256 of this plan as JSON, with an empty digest."""

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

    def node(self, name: str) -> NodePlan:
        """Return the node of that name. Raises BuildError if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        valid = ", ".join(node.name for node in self.processes.get(name, self.nodes))
        raise BuildError(f"this build has no node '{name}'", hint=f"one of: {valid}")

    @property
    def processes(self) -> dict[str, tuple[NodePlan, ...]]:
        """The nodes of each process by its name, in order; the first is that of the
        control node."""
        found: dict[str, tuple[NodePlan, ...]] = {}
        for node in self.nodes:
            name = NodeId(node.name).process
            found[name] = (*found.get(name, ()), node)
        return found

    def process(self, name: str) -> tuple[NodePlan, ...]:
        """Return the nodes of a process. Raises BuildError if there is none."""
        try:
            return self.processes[name]
        except KeyError:
            process, valid = NodeId(name).process, ", ".join(self.processes)
            if process in self.processes:
                message = f"{name} is a thread, and not a process"
                raise BuildError(message, hint=f"run {process}") from None
            message = f"this build has no node '{name}'"
            raise BuildError(message, hint=f"one of: {valid}") from None

    def memory_for_rows(self, node: str) -> int | None:
        """Return the bytes that the sparse tables of a node, the only one of its process
        with any, may use: what a step leaves of the memory of the process. None if the
        spec says nothing of that memory."""
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
        """How many steps a node can have begun that another node has not when all act
        together: 0 if all act after the same step."""
        edges = self.step_edges
        if not edges or any(
            not edge.is_asynchronous and not edge.companions for edge in edges
        ):
            return 0
        modes = [table.mode for node in self.nodes for table in node.tables]
        modes += [table.mode for table in self.sparse_tables]
        if any(mode is not None and mode.in_rounds for mode in modes):
            return 0  # they meet in each round
        bounds = [mode.bound for mode in modes if mode is not None]
        return 1 + min((b for b in bounds if b is not None), default=math.inf)

    @property
    def staleness_bound(self) -> int | None:
        """The largest staleness that a gradient may have: so many steps of other workers
        that were applied since its worker got the parameters. None without a bound."""
        modes = [table.mode for node in self.nodes for table in node.tables]
        modes += [table.mode for table in self.sparse_tables]
        # Those that exchange differences, and not gradients, have none.
        bounds = [m.bound for m in modes if m is not None and not isinstance(m, Geo)]
        if not bounds or None in bounds:
            return None
        # Of each other worker: from `bound` + 1 steps before its own step to `bound` steps
        # after it.
        return (2 * max(filter(None, bounds), default=0) + 1) * (self.workers - 1)

    @property
    def is_synchronous(self) -> bool:
        """Whether all nodes act after the same step, to stop or to save the run."""
        return self.max_lead == 0

    def pushed_rows(self, node: str) -> RowShard:
        """Return the rows of a step that the gradients which a node pushes, or those of
        its companion, are of; all rows for any other node."""
        for nodes, index in self._computing(node):
            return row_shard(nodes, index, self.workers)
        return RowShard((0,), 1)

    def worker_of(self, node: str) -> str | None:
        """Return the worker whose steps a node does, without lockstep or with backup
        workers: itself, or its companion. None for any other node."""
        workers = [each.name for each in self.nodes if NodeId(each.name).kind == WORKER]
        for nodes, index in self._computing(node):
            return worker_of(nodes, index, workers)
        return None

    def companions(self, node: str) -> tuple[str, ...]:
        """Return the nodes that end at the same step as a node, without lockstep: itself
        and its companions."""
        worker = self.worker_of(node)
        if worker is None:
            return (node,)
        names = [each.name for each in self.nodes]
        return tuple(name for name in names if self.worker_of(name) == worker)

    def _computing(self, node: str) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield the workers, or the heter nodes, among which a node computes gradients
        without waiting for the others, and its position."""
        for edge in self.step_edges:
            sides = (edge.sources, edge.targets) if edge.companions else (edge.sources,)
            is_push = edge.is_push or edge.takes_first
            if not (edge.companions or is_push):
                continue
            for side in sides:
                if node in side:
                    yield side, side.index(node)

    @property
    def has_backup(self) -> bool:
        """Whether a step does not wait for its last workers."""
        return any(edge.takes_first for edge in self.step_edges)

    @property
    def workers(self) -> int:
        """The number of nodes of kind `worker`."""
        return sum(NodeId(node.name).kind == WORKER for node in self.nodes)


def device_peaks(nodes: Sequence[NodePlan]) -> dict[str, int]:
    """Return the peak of values and tables on each device of a process in bytes, as if
    all its nodes had their peaks at the same time.

    Args:
        nodes: the nodes of the process, which share its devices.
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
    """Return the nodes that a node exchanges messages with: those of its edges, and the
    control node, which is the neighbour of all."""
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
                # At a drain they take those of the first.
                first = edge.targets[0]
                found.update(edge.targets if name == first else {first})
    return frozenset(found - {name})


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
    return os.path.isfile(folder / FILE)  # False, and no error, for a long name


def _build_hint(folder: Path) -> str:
    """Return the hint for a folder without a plan: the build that may be meant."""
    if os.path.isfile(folder):
        return (
            "if it is a spec: placer.train runs it, placer.compile makes a build of it"
        )
    if is_build(folder / OF_RUN):
        return f"did you mean '{folder / OF_RUN}'?"
    return path_hint(folder, is_build) or (
        "create one with: placer compile SPEC --out FOLDER"
    )


def read_plan(folder: Path) -> Plan:
    """Read and check the plan of a build folder, and check the folder's files.

    Raises BuildError if the folder is not a build, has changed or unknown files or
    links, can be changed by other users, has a plan of another version, or has a plan
    that is inconsistent (`check_plan`).
    """
    if not is_build(folder):
        raise BuildError(
            f"'{folder}' is not a build folder: it has no {FILE}",
            hint=_build_hint(folder),
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
    except (ValueError, RecursionError) as error:  # msgspec raises ValueErrors
        raise BuildError(f"'{file}' cannot be read: {error}") from error
    check_files(folder, plan)
    return plan


def check_files(folder: Path, plan: Plan) -> None:
    """Raise BuildError if a file of the build was changed, or if there are other files.

    Python runs a program that it is started with, and what that imports from its own
    folder, before this check: `docs/security.md`.
    """
    modules = (f"{module}.py" for module in plan.modules)
    for path in (*(node.program for node in plan.nodes), *modules):
        if path not in plan.files:
            raise BuildError(
                f"'{folder / FILE}' has no hash of '{path}', which would be run",
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


class Sources(PlanStruct, frozen=True):
    """The content of sources.json: the spec's path, relative to the build folder, the
    line and column of each op in the spec, and of the keys of `data`, such as
    `train.source`, the ops of each line of the programs, and the keys of the spec that were
    set by `--set` or `overrides`, as `KEY=VALUE`.

    `lines` has the path of each program, and by the number of a line what an error
    there is about: a function of the program, and the op of it or, of several ops, the
    first and the last in the spec.

    It is the only file that depends on the path of the build, so the plan has no hash
    of it: a user who moves a build may change `spec`. It only determines the folder of
    data files, and the positions in messages.
    """

    spec: Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=4096)]
    ops: dict[ValueName, tuple[Count, Count]]
    data: dict[str, tuple[Count, Count]] = {}
    lines: dict[str, dict[Count, tuple[ValueName, ...]]] = {}
    overrides: tuple[str, ...] = ()


def data_root(build: Path) -> Path:
    """Return the folder to which the files of a spec's data are relative: PLACER_DATA, by
    default the folder of the spec. Raises BuildError as `read_sources`."""
    chosen = os.environ.get(DATA)
    return Path(chosen) if chosen else (build / read_sources(build).spec).parent


def read_sources(folder: Path) -> Sources:
    """Read sources.json. Raises BuildError if it cannot be read."""
    content = read_file(folder, SOURCES, limit=MAX_PLAN_BYTES)
    return decode_sources(content, folder / SOURCES)


def decode_sources(content: bytes, file: Path) -> Sources:
    """Decode the content of sources.json; `file` names it in errors.

    Raises BuildError if it cannot be decoded.
    """
    try:
        return msgspec.json.decode(content, type=Sources)
    except (ValueError, RecursionError) as error:  # msgspec raises ValueErrors
        raise BuildError(f"'{file}' cannot be read: {error}") from error


def sha256(content: bytes) -> str:
    """Return the hash of a file's content, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()
