"""How much memory a step needs on a host, and whether the spec's devices have it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from placer.emit.blocks import blocks
from placer.emit.host import units
from placer.emit.schedule import Schedule
from placer.errors import SpecError
from placer.graph import optimizers
from placer.graph.graph import Graph, Op, Value
from placer.graph.model import Model
from placer.graph.rows import part
from placer.graph.structure import FLAT
from placer.graph.types import ITEM_BYTES
from placer.plan import Plan, Table

Walk = list[tuple[Op, int | None]]


def activation_bytes(graph: Graph, host: str, schedule: Schedule) -> int:
    """Bytes of the values of a step that live at once on the host, at most.

    A value lives from the op that makes it to the last that uses it; what is made for
    each microbatch as often as the schedule has it alive. What XLA does inside a
    segment, such as fusing or reusing a buffer, is not counted.
    """
    return _peak(graph, host, None, walk(graph, host, schedule))


def table_bytes(graph: Graph, tables: Sequence[Table]) -> int:
    """Bytes of tables: values, and what their optimizers keep."""
    return sum(_table_bytes(graph, table) for table in tables)


def device_bytes(
    graph: Graph, host: str, tables: Sequence[Table], schedule: Schedule
) -> dict[str, int]:
    """Both of each device that something is on. Devices that compute together have each
    a share of the rows, and all of the rest."""
    found: dict[str, int] = {}
    places = {graph.devices(op): op.place for op in graph.on(host)}
    walked = walk(graph, host, schedule)
    for devices, place in places.items():
        assert place is not None
        needed = _peak(graph, host, devices, walked)
        needed += table_bytes(graph, [t for t in tables if t.devices == devices])
        for at in graph.cluster.resolve(place):
            if at.host == host:
                device = f"{at.device}:{at.device_id}"
                found[device] = found.get(device, 0) + needed
    return found


def walk(graph: Graph, host: str, schedule: Schedule) -> Walk:
    """The host's ops in the order in which they run, each with its microbatch."""
    if host not in schedule.turns:
        return [(op, None) for op in graph.on(host)]
    found = blocks(graph, units(graph, host))
    among = {block.name: tuple(block.ops) for block in found.among}
    walked: Walk = [(op, None) for op in found.before.ops]
    for turn in schedule.turns[host]:
        walked += ((op, turn.microbatch) for op in among[turn.block])
    walked += ((op, None) for op in found.after.ops)
    return walked


def _peak(graph: Graph, host: str, devices: str | None, walked: Walk) -> int:
    """The most that is alive at once of what is made on these devices of the host, or
    on any."""
    sizes = _Sizes(graph, host, each=devices is not None)
    last: dict[_Made, int] = {}
    for i, (op, microbatch) in enumerate(walked):
        for name in op.operands:
            last[name, _number(graph, name, microbatch)] = i
    ends: dict[int, int] = {}
    summed: set[str] = set()
    alive = peak = 0
    for i, (op, microbatch) in enumerate(walked):
        here = devices is None or graph.devices(op) == devices
        # Blocks are views, and parameters are the tables'. Sums are made in one place.
        if here and op.kind not in FLAT and op.kind != "parameter":
            for value in op.results:
                if op.kind in _IN_ONE_PLACE and value.name in summed:
                    continue
                summed.add(value.name)
                size = sizes.of(op, value, joins=op.kind == "join_microbatches")
                alive += size
                end = last.get((value.name, _number(graph, value.name, microbatch)), i)
                ends[max(end, i)] = ends.get(max(end, i), 0) + size
        peak = max(peak, alive)
        alive -= ends.pop(i, 0)
    return peak


_Made = tuple[str, int | None]
_IN_ONE_PLACE = frozenset({"sum_microbatches", "one_microbatch"})


def _number(graph: Graph, name: str, microbatch: int | None) -> int | None:
    return None if graph.values[name].over is None else microbatch


class _Sizes:
    """How many bytes a value takes on a host, or on `each` of the devices it is on."""

    def __init__(self, graph: Graph, host: str, *, each: bool) -> None:
        self._graph = graph
        self._host = host
        self._each = each
        # By the identity of a type and of a place: few there are, and equal is slow.
        self._known: dict[tuple[int, str | None, bool, int], int] = {}

    def of(self, op: Op, value: Value, *, joins: bool) -> int:
        """One microbatch's, of what is made or joined for each."""
        repeated = joins or value.over == "S"
        key = id(value.type), value.layout, repeated, id(op.place)
        size = self._known.get(key)
        if size is None:
            size = self._known[key] = self._size(op, value, repeated)
        return size

    def _size(self, op: Op, value: Value, repeated: bool) -> int:
        graph = self._graph
        batch = graph.batch // graph.microbatches if repeated else graph.batch
        hosts = graph.hosts(op)
        rows = batch
        if value.layout == "S":
            low, high = part(batch, hosts.index(self._host), len(hosts))
            rows = high - low
        if self._each:
            assert op.place is not None
            rows //= len(graph.cluster.resolve(op.place)) // len(hosts)
        return value.type.nbytes(batch, rows)


def _table_bytes(graph: Graph, table: Table) -> int:
    """Values, those of the step before unless they are written over, and what the
    optimizer keeps: its state, and the directions of a rule that has them."""
    copies = 1 if table.in_place else 2
    if table.rule is not None:
        copies += len(optimizers.slots(table.rule, table.hyper))
        copies += optimizers.find(table.rule).direction
    return copies * sum(
        prod(block.shape) * ITEM_BYTES[graph.tensor(block.name).dtype]
        for block in table.blocks
    )


def check_memory(plan: Plan, model: Model) -> None:
    """Raise SpecError at the device's memory that a step does not fit into."""
    for node in plan.nodes:
        kind = node.name.split(":")[0]
        for device, needed in node.device_bytes.items():
            memory = model.memory.get((kind, device.split(":")[0]))
            if memory is not None and needed > memory.nbytes:
                raise SpecError(
                    f"a step on {node.name} needs {needed:,} bytes of {device}, which "
                    f"holds {memory.nbytes:,}",
                    span=memory.span,
                    hint="use a smaller batch, or more nodes",
                )
