"""Estimates the memory of a step on each node, and checks it against the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from math import prod
from operator import add
from types import MappingProxyType

from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.keyed import count_keys, keys_of, row_bytes
from placer.compiler.graph.model import Memory, Model
from placer.compiler.graph.stored_bytes import state_bytes
from placer.compiler.memory.lifetimes import Lifetime, Lifetimes
from placer.compiler.schedule.schedule import Schedule, ScheduledTask
from placer.compiler.schedule.units import LoweredGraph, Unit
from placer.errors import SpecError
from placer.place import Place
from placer.place.layouts.partition import row_shard
from placer.place.node_kinds import NodeId
from placer.place.types import ITEM_BYTES, TensorType, is_half_float
from placer.plan.plan import MEMORY, Plan, SparseTable, Table, device_peaks
from placer.plan.settings.sparse.row_bytes import table_bytes
from placer.plan.settings.training.optimizers import OPTAX, read_rule
from placer.plan.settings.training.update_modes import GradientMode, Mode


class MemoryEstimate:
    """The memory in bytes for a step's values and tables on each node.

    The estimate ignores optimizations of XLA inside a jitted function, such as fusing ops or
    reusing buffers.

    Args:
        step: the graph of the step.
        schedule: the schedule of the step.
        ahead: the bytes of the next step's parameters that each node receives while it
            computes.
    """

    def __init__(
        self,
        step: LoweredGraph,
        schedule: Schedule,
        ahead: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._graph = step.graph
        self._node_classes = step.node_classes
        self._schedule = schedule
        self._ahead = ahead
        self._lifetimes = Lifetimes(step, schedule)
        self._peaks: dict[str, _Peaks] = {}
        self._places: dict[str, Mapping[str, Place]] = {}

    def activation_bytes(self, node: str) -> int:
        """Return the peak bytes of all values of a step on the node."""
        return self._peaks_of(node)[None] + self._ahead.get(node, 0)

    def sum_bytes(self, node: str) -> int:
        """Return the bytes of the gradient sums on a server for worker-side updates.

        For each worker, the server keeps one sum that grows and one that is being sent.
        """
        graph, total = self._graph, 0
        for op in self._pushed_sums:
            if node not in graph.nodes(op):
                continue
            part = graph.nodes(op).index(node)
            workers = len(graph.nodes(graph.sends[op.attrs["edge"]]))
            for value in op.results:
                low, high = graph.ranges(value.name).of(part)
                kind = graph.tensor_type(value.name)
                item = ITEM_BYTES[kind.dtype]
                if is_half_float(kind.dtype):
                    item += ITEM_BYTES["float32"]  # half floats are summed in float32
                else:
                    item *= 2
                total += workers * (high - low) * item
        return total

    @cached_property
    def _pushed_sums(self) -> list[Op]:
        """The ops that receive gradients at servers that only sum."""
        received = self._graph.receives.values()
        return [op for op in received if op.exchange and op.exchange.handling == "adds"]

    def table_bytes(self, tables: Sequence[Table]) -> int:
        """Return the bytes of tables: values and optimizer slots."""
        return sum(_table_bytes(self._graph, table) for table in tables)

    def device_bytes(self, node: str, tables: Sequence[Table]) -> dict[str, int]:
        """Return the peak bytes of values and tables on each device in use.

        Devices that compute together each hold a part of the rows, and a copy of values
        without rows.
        """
        graph = self._graph
        device_bytes: dict[str, int] = {}
        peaks = self._peaks_of(node)
        for devices, place in self._places_on(node).items():
            needed = peaks[devices]
            needed += self.table_bytes([t for t in tables if t.devices == devices])
            if devices == MEMORY:
                needed += self.sum_bytes(node) + self._ahead.get(node, 0)
            for number in graph.cluster.device_ids(place):
                device = f"{place.device}:{number}"
                device_bytes[device] = device_bytes.get(device, 0) + needed
        return device_bytes

    def _places_on(self, node: str) -> Mapping[str, Place]:
        """Return the places of the node's ops by devices."""
        first, graph = self._node_classes.representative(node), self._graph
        if first not in self._places:
            places = {graph.devices(op): op.known_place for op in graph.ops_on(first)}
            self._places[first] = places
        return self._places[first]

    def _peaks_of(self, node: str) -> _Peaks:
        if self._is_same_in_class:
            node = self._node_classes.representative(node)
        if node not in self._peaks:
            self._peaks[node] = self._compute_peaks(node)
        return self._peaks[node]

    @cached_property
    def _is_same_in_class(self) -> bool:
        """Whether nodes of a class also run their tasks at the same times."""
        return all(
            _times(self._schedule, node) == _times(self._schedule, first)
            for first, nodes in self._node_classes.classes.items()
            for node in nodes
        )

    def _compute_peaks(self, node: str) -> _Peaks:
        graph, slots = self._graph, self._lifetimes.slots_of(node)
        whole = _LiveBytes(graph, node, None, len(slots))
        places = self._places_on(node)
        counters = {
            devices: _LiveBytes(graph, node, devices, len(slots)) for devices in places
        }
        if [len(graph.cluster.device_ids(each)) for each in places.values()] == [1]:
            counters = dict.fromkeys(places, whole)  # a single device holds all values
        for lifetime in self._lifetimes.lifetimes_in(node, slots):
            for counter in {whole, counters[graph.devices(lifetime.op)]}:
                counter.add(lifetime)
        for i, slot in enumerate(slots):
            for unit in slot.units:
                if unit.computed:
                    for counter in {whole, counters[graph.devices(unit.ops[0])]}:
                        counter.add_temporaries(i, unit)
        peaks: dict[str | None, int] = {None: whole.peak()}
        peaks.update((each, counter.peak()) for each, counter in counters.items())
        return peaks


def _times(schedule: Schedule, node: str) -> list[tuple[ScheduledTask, int]]:
    return [(task, task.start) for task in schedule.tasks.get(node, ())]


_Peaks = Mapping[str | None, int]
"""The peak bytes of values on each set of devices of a node; the key None is the whole
node."""


class _LiveBytes:
    """The bytes of live values in each time slot of a node, on some devices."""

    def __init__(
        self, graph: Graph, node: str, devices: str | None, slots: int
    ) -> None:
        self._sizes = _Sizes(graph, node, devices)
        self._changes = [0] * (slots + 1)  # relative to the previous slot
        self._temporaries = [0] * slots

    def add(self, lifetime: Lifetime) -> None:
        """Count a value in the slots of its lifetime."""
        size = self._sizes.size_of(lifetime.op, lifetime.value)
        self._changes[lifetime.first] += size
        self._changes[lifetime.last + 1] -= size

    def add_temporaries(self, slot: int, unit: Unit) -> None:
        """Count the values that a function computes but does not return."""
        temporaries = _peak_of_temporaries(unit, self._sizes)
        self._temporaries[slot] = max(self._temporaries[slot], temporaries)

    def peak(self) -> int:
        return max(map(add, accumulate(self._changes), self._temporaries), default=0)


def _peak_of_temporaries(unit: Unit, sizes: _Sizes) -> int:
    """Return the peak bytes of values that a function computes but does not return."""
    last_use = {name: i for i, op in enumerate(unit.ops) for name in op.operands}
    outputs = set(unit.outputs)
    freed: dict[int, int] = {}  # by op: the bytes that it uses last
    alive = peak = 0
    for i, op in enumerate(unit.ops):
        for value in op.results:
            if value.name in outputs:
                continue
            size = sizes.size_of(op, value)
            alive += size
            last = max(last_use.get(value.name, i), i)
            freed[last] = freed.get(last, 0) + size
        peak = max(peak, alive)
        alive -= freed.pop(i, 0)
    return peak


class _Sizes:
    """The bytes of values on a node, or on each device of a set."""

    def __init__(self, graph: Graph, node: str, devices: str | None) -> None:
        self._graph = graph
        self._node = node
        self._devices = devices
        # Keyed by the ids of types and places: a graph has few of them, and comparing
        # by value is slow.
        self._known: dict[tuple[int, str | None, bool, int], int] = {}

    def size_of(self, op: Op, value: Value) -> int:
        """Return the bytes of a result of the op, per microbatch if each has its own.

        Views take 0 bytes: blocks of other values, and parameters, which tables store.
        """
        if not op.structure.allocates:
            return 0
        repeated = value.microbatch_layout == "S" or op.structure.reduces == "S"
        if value.flat is not None:
            return self._size_of_range(value)
        if isinstance(value.type, TensorType) and value.type.is_keyed:
            return self._size_of_rows(value, value.type)
        key = id(value.type), value.layout, repeated, id(op.place)
        size = self._known.get(key)
        if size is None:
            size = self._known[key] = self._compute_size(op, value, repeated)
        return 2 * size if _is_sum_of_half_floats(op) else size

    def _size_of_range(self, value: Value) -> int:
        """Return the bytes of the node's range of a value."""
        # A value that is divided into ranges has no rows, so every device of the node holds
        # the node's whole range.
        graph, name = self._graph, value.name
        part = graph.nodes(graph.producers[name]).index(self._node)
        low, high = graph.ranges(name).of(part)
        return (high - low) * ITEM_BYTES[graph.tensor_type(name).dtype]

    def _size_of_rows(self, value: Value, kind: TensorType) -> int:
        """Return the maximum bytes of rows by key: all keys differ, and one node holds them."""
        graph = self._graph
        nodes = graph.nodes(keys_of(graph, value.name))
        rows = graph.batch // graph.microbatches
        if self._node in nodes:
            share = row_shard(nodes, nodes.index(self._node), graph.cluster.workers)
            rows = share.num_rows(rows)
        return count_keys(graph, value.name, rows) * row_bytes(kind)

    def _compute_size(self, op: Op, value: Value, repeated: bool) -> int:
        graph = self._graph
        batch = graph.batch // graph.microbatches if repeated else graph.batch
        nodes = graph.nodes(op)
        rows = batch
        if value.layout == "S":
            index = nodes.index(self._node)
            rows = row_shard(nodes, index, graph.cluster.workers).num_rows(batch)
        if self._devices is not None:
            rows //= len(graph.cluster.device_ids(op.known_place))
        return value.type.nbytes(batch, rows)


def _is_sum_of_half_floats(op: Op) -> bool:
    """Whether the runtime sums the op's half floats over microbatches in float32."""
    if op.structure.reduces != "P":
        return False
    kind = op.result.type
    return isinstance(kind, TensorType) and is_half_float(kind.dtype)


def _is_offered(graph: Graph, table: Table) -> bool:
    """Whether stragglers may still use earlier values of a table."""
    users = (u for block in table.blocks for u in graph.uses.get(block.name, ()))
    return any(user.exchange and user.exchange.is_offered for user in users)


def _table_bytes(graph: Graph, table: Table) -> int:
    """Return the bytes of a table: its values, slots and copies."""
    # Without in-place updates, the values of the previous step take the same space
    # again. A two-phase rule also stores update directions. An asynchronous table needs
    # the copies of `_exchange_copies`. A worker's local values need three copies for
    # the exchange.
    copies = 1 if table.in_place else 2
    if _is_offered(graph, table):
        copies += graph.cluster.workers
    if table.local:
        copies += 3  # the servers' values, a difference, and an answer
    if table.mode is not None:
        copies += _exchange_copies(graph, table, table.mode)
    state = 0
    if table.rule == OPTAX:
        optimizer = graph.optimizers[int(table.transformation)]
        # An update makes new arrays, while the old ones still exist.
        state = 2 * sum(
            state_bytes(optimizer.attrs["transformation"], block.parameter, block.numel)
            for block in table.blocks
        )
    elif table.rule is not None:
        rule = read_rule(table.rule, table.hyper)
        copies += len(rule.first_slots) + rule.is_two_phase
    return state + copies * sum(
        prod(block.shape) * ITEM_BYTES[graph.tensor_type(block.name).dtype]
        for block in table.blocks
    )


def _exchange_copies(graph: Graph, table: Table, mode: Mode) -> int:
    """Return how many extra copies of a table's values an asynchronous exchange needs."""
    # A server keeps a version or a difference for each worker. A worker with its own
    # optimizer keeps gradients to send and gradients to apply. Without a server, other
    # workers may be `bound` steps ahead of this one, and `bound` steps behind it.
    gradient = graph.producers[str(table.blocks[0].gradient)]
    exchange = gradient.exchange
    if exchange is not None and exchange.updates_workers:
        assert isinstance(mode, GradientMode), table.name
        if exchange.moves == "sums":
            return mode.queue + 2
        assert mode.bound is not None, table.name
        others = graph.cluster.workers - 1
        return mode.queue + 1 + others * (2 * mode.bound + 1)
    return graph.cluster.workers * (1 + (mode.compensate is not None))


def check_memory(plan: Plan, model: Model) -> None:
    """Raise SpecError if a step exceeds the memory that the spec gives a device.

    Host memory also holds the sparse tables with their expected rows. The error points at
    `memory` in the spec.
    """
    for process, nodes in plan.processes.items():
        kind, threads = NodeId(process).kind, len(nodes)
        for device, needed in device_peaks(nodes).items():
            memory = model.memory.get((kind, device.split(":")[0]))
            if memory is not None and needed > memory.nbytes:
                together = f" in {threads} threads" if threads > 1 else ""
                raise SpecError(
                    f"a step on {process}{together} needs {needed:,} bytes of {device},"
                    f" which has only {memory.nbytes:,}",
                    span=memory.span,
                    hint="use a smaller batch, or more nodes"
                    + (", or fewer threads" if threads > 1 else ""),
                )
            if memory is not None and device == MEMORY:
                _check_rows(plan, process, needed, memory)


def _check_rows(plan: Plan, process: str, needed: int, memory: Memory) -> None:
    """Raise SpecError if sparse tables do not fit in the memory that a step leaves."""
    # `needed`: the bytes that a step of the process needs.
    held = [
        (nbytes, table)
        for table in plan.sparse_tables
        if (nbytes := _bytes_in_process(plan, process, table))
    ]
    if needed + sum(nbytes for nbytes, _ in held) <= memory.nbytes:
        return
    listed = [
        f"at least {nbytes:,} for {_expected(table)} of table '{table.name}'"
        for nbytes, table in sorted(held, key=lambda each: -each[0])
    ]
    *first, last = [f"{needed:,} bytes of {MEMORY} for a step", *listed]
    raise SpecError(
        f"{process} needs {', '.join(first)} and {last}, which exceeds its"
        f" {memory.nbytes:,}",
        span=memory.span,
        hint="use more nodes, or a smaller 'dim', fewer 'rows' or a 'capacity'",
    )


def _bytes_in_process(plan: Plan, process: str, table: SparseTable) -> int:
    """Return the minimum bytes of a process for its part of a sparse table."""
    return sum(
        table_bytes(
            table.settings,
            table.dtype,
            table.rows or 0,
            len(table.partitions_of(node.name)),
        )
        for node in plan.processes[process]
        if node.name in table.holders
    )


def _expected(table: SparseTable) -> str:
    """Describe the expected rows of a table that its nodes share."""
    if table.rows is None:
        return "the index"
    rows = min(table.rows, table.settings.capacity or table.rows)
    share = "" if len(table.holders) == 1 else "its part of "
    return f"{share}{rows:,} expected rows"
