"""How much memory a step needs on a node, and whether the spec's devices have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from math import prod
from operator import add

from placer.analysis.lifetimes import Life, Lifetimes
from placer.analysis.schedule import Schedule, Turn
from placer.analysis.units import Phase, Unit
from placer.build.plan import Plan, Table
from placer.config import optimizers
from placer.errors import SpecError
from placer.graph.graph import Graph, Op, Value
from placer.graph.kinds import FLAT
from placer.graph.model import Model
from placer.layouts.conversions import share_of
from placer.types import HALVES, ITEM_BYTES, TensorType


class Memory:
    """Of a step: what its values and its tables take on each node.

    What XLA does inside a jitted function, such as fusing or reusing a buffer, is not
    counted.
    """

    def __init__(self, step: Phase, schedule: Schedule) -> None:
        self._graph = step.graph
        self._alike = step.alike
        self._schedule = schedule
        self._lifetimes = Lifetimes(step, schedule)
        self._found: dict[str, _Peaks] = {}

    def activations(self, node: str) -> int:
        """Bytes of the values of a step that live at once on the node, at most."""
        return self._peaks(node)[None]

    def tables(self, tables: Sequence[Table]) -> int:
        """Bytes of tables: values, and what their optimizers keep."""
        return sum(_table_bytes(self._graph, table) for table in tables)

    def devices(self, node: str, tables: Sequence[Table]) -> dict[str, int]:
        """Both of each device that something is on. Devices that compute together have
        each a share of the rows, and all of the rest."""
        graph = self._graph
        found: dict[str, int] = {}
        places = {graph.devices(op): op.place for op in graph.on(node)}
        peaks = self._peaks(node)
        for devices, place in places.items():
            assert place is not None
            needed = peaks[devices]
            needed += self.tables([t for t in tables if t.devices == devices])
            for number in graph.cluster.device_ids(place):
                device = f"{place.device}:{number}"
                found[device] = found.get(device, 0) + needed
        return found

    def _peaks(self, node: str) -> _Peaks:
        if self._is_even:
            node = self._alike.first(node)
        if node not in self._found:
            self._found[node] = self._looked_for(node)
        return self._found[node]

    @cached_property
    def _is_even(self) -> bool:
        """Whether nodes that are alike take their turns at the same times, too."""
        return all(
            _times(self._schedule, node) == _times(self._schedule, first)
            for first, nodes in self._alike.classes.items()
            for node in nodes
        )

    def _looked_for(self, node: str) -> _Peaks:
        graph, runs = self._graph, self._lifetimes.runs(node)
        whole = _Alive(graph, node, None, len(runs))
        groups = {graph.devices(op): op for op in graph.on(node)}
        counted = {
            each: (whole, _Alive(graph, node, each, len(runs))) for each in groups
        }
        if len(groups) == 1 and all(_is_on_one(graph, op) for op in groups.values()):
            counted = dict.fromkeys(groups, (whole, whole))
        for life in self._lifetimes.of(node, runs):
            for alive in set(counted[graph.devices(life.op)]):
                alive.add(life)
        for i, run in enumerate(runs):
            for unit in run.units:
                if unit.computed:
                    for alive in set(counted[graph.devices(unit.ops[0])]):
                        alive.within(i, unit)
        found: dict[str | None, int] = {None: whole.peak()}
        found.update((each, alive.peak()) for each, (_, alive) in counted.items())
        return found


def _times(schedule: Schedule, node: str) -> list[tuple[Turn, int]]:
    return [(turn, turn.begin) for turn in schedule.turns.get(node, ())]


_Peaks = Mapping[str | None, int]
"""The most bytes that are alive at once of what is made on some devices of a node, or,
by None, on any."""


class _Alive:
    """What is alive in every run of a node, of what is made on the `devices`."""

    def __init__(self, graph: Graph, node: str, devices: str | None, runs: int) -> None:
        self._sizes = _Sizes(graph, node, devices)
        self._changes = [0] * (runs + 1)
        self._within = [0] * runs

    def add(self, life: Life) -> None:
        size = self._sizes.of(life.op, life.value)
        self._changes[life.born] += size
        self._changes[life.dies + 1] -= size

    def within(self, run: int, unit: Unit) -> None:
        """Count what a function of the run computes and does not give."""
        self._within[run] = max(self._within[run], _within(unit, self._sizes))

    def peak(self) -> int:
        return max(map(add, accumulate(self._changes), self._within), default=0)


def _is_on_one(graph: Graph, op: Op) -> bool:
    """Whether the op is on one device of each of its nodes."""
    assert op.place is not None
    return len(graph.cluster.device_ids(op.place)) == 1


def _within(unit: Unit, sizes: _Sizes) -> int:
    """The most that is alive at once of what a function computes and does not give."""
    last = {name: i for i, op in enumerate(unit.ops) for name in op.operands}
    outputs = set(unit.outputs)
    ends: dict[int, int] = {}
    alive = peak = 0
    for i, op in enumerate(unit.ops):
        for value in op.results:
            if value.name in outputs:
                continue
            size = sizes.of(op, value)
            alive += size
            end = max(last.get(value.name, i), i)
            ends[end] = ends.get(end, 0) + size
        peak = max(peak, alive)
        alive -= ends.pop(i, 0)
    return peak


class _Sizes:
    """How many bytes a value takes on a node, or on each of the `devices` of it."""

    def __init__(self, graph: Graph, node: str, devices: str | None) -> None:
        self._graph = graph
        self._node = node
        self._devices = devices
        # By the identity of a type and of a place: few there are, and equal is slow.
        self._known: dict[tuple[int, str | None, bool, int], int] = {}

    def of(self, op: Op, value: Value) -> int:
        """One microbatch's, of what is made or joined for each. None of what is a view:
        blocks are, and parameters are the tables'."""
        if op.kind in FLAT or op.kind == "parameter":
            return 0
        repeated = value.over == "S" or op.kind == "join_microbatches"
        key = id(value.type), value.layout, repeated, id(op.place)
        size = self._known.get(key)
        if size is None:
            size = self._known[key] = self._size(op, value, repeated)
        return 2 * size if _is_sum_of_halves(op) else size

    def _size(self, op: Op, value: Value, repeated: bool) -> int:
        graph = self._graph
        batch = graph.batch // graph.microbatches if repeated else graph.batch
        nodes = graph.nodes(op)
        rows = batch
        if value.layout == "S":
            number = nodes.index(self._node)
            rows = share_of(nodes, number, graph.cluster.workers).size(batch)
        if self._devices is not None:
            assert op.place is not None
            rows //= len(graph.cluster.device_ids(op.place))
        return value.type.nbytes(batch, rows)


def _is_sum_of_halves(op: Op) -> bool:
    """Whether the runtime adds up its result over microbatches in float32."""
    if op.kind != "sum_microbatches":
        return False
    kind = op.result.type
    return isinstance(kind, TensorType) and kind.dtype in HALVES


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
