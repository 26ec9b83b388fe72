"""Lists what each node does in one step, in order, with its costs.

The items follow the node programs that `placer.compiler.emit` writes: calls of jitted
functions, reads, sums over microbatches, updates, copies, and messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Literal, NamedTuple

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.keyed import count_keys, is_keyed
from placer.compiler.graph.structural_ops import is_update
from placer.compiler.placing.costs import NOTHING, Costs, Times, add
from placer.compiler.placing.functions import Functions, count_arrays
from placer.compiler.placing.messages import Message, messages_of
from placer.compiler.schedule.schedule import Schedule, ScheduledTask
from placer.compiler.schedule.tasks import Task, split_into_tasks
from placer.compiler.schedule.units import LoweredGraph, Unit
from placer.place.node_kinds import NodeId
from placer.place.types import TensorType

Kind = Literal["compute", "sums", "messages", "calls"]
"""What a node is busy with: ops and updates, sums over microbatches, messages and copies, and
the calls of functions and of the node."""

KINDS: tuple[Kind, ...] = ("compute", "sums", "messages", "calls")

_STORE = -1
"""Stands for the call that stores values, among the optimizer groups that have had their
call in a step."""

Route = tuple[int, int | None, str, str]
"""A message within a step: edge, microbatch, source and target."""


class Item(NamedTuple):
    """One call of a node program.

    Attributes:
        name: the method or the function, for people.
        busy: the times by kind, in nanoseconds of CPU.
        waits: the messages that must have arrived first.
        sends: the messages that leave when the item ends, with their bytes.
    """

    name: str
    busy: Mapping[Kind, Times]
    waits: tuple[Route, ...] = ()
    sends: tuple[tuple[Route, int], ...] = ()


@dataclass(frozen=True)
class StepItems:
    """The items of all nodes in one step.

    Attributes:
        items: the items of each node, in order.
        missing: the groups without an entry in the cost file, which cost their declared
            FLOPs; empty for the fixed rates.
    """

    items: Mapping[str, Sequence[Item]]
    missing: tuple[str, ...] = ()


def step_items(
    step: LoweredGraph,
    schedule: Schedule,
    costs: Costs,
    groups: Mapping[str, str] = MappingProxyType({}),
) -> StepItems:
    """Return the items of each node in one training step.

    Args:
        step: the graph of a training step.
        schedule: its schedule.
        costs: the costs of the items.
        groups: the movable group of each forward op by name; an op that is missing is a
            group of its own.

    Example:
        items = step_items(LoweredGraph(step, step.batch, "step"), schedule, costs)
    """
    writer = _Writer(step, costs, Functions(step.graph, costs, groups))
    items: dict[str, Sequence[Item]] = {}
    for node in step.graph.cluster.all_nodes():
        items[node] = tuple(writer.items_on(node, schedule.tasks.get(node, ())))
    return StepItems(items, tuple(sorted(writer.functions.missing)))


@dataclass
class _Writer:
    step: LoweredGraph
    costs: Costs
    functions: Functions
    _messages: dict[int, tuple[Message, ...]] = field(default_factory=dict)
    _of_unit: dict[tuple[int, bool], Item | None] = field(default_factory=dict)
    """The item of each computed unit, by `id` and whether it is of the class's first node."""

    @property
    def graph(self) -> Graph:
        return self.step.graph

    def items_on(self, node: str, turns: Sequence[ScheduledTask]) -> Iterator[Item]:
        """Yield the items of a node; `turns` are its scheduled tasks."""
        units = self.step.units_on(node)
        if not units:
            return
        yield self._call("step", 1)
        updated: set[int] = set()
        if self.graph.microbatches == 1:
            for unit in units:
                yield from self._unit(node, unit, None, updated)
            return
        step = split_into_tasks(self.graph, units)
        yield from self._task(node, step.before, None, updated)
        tasks = {task.name: task for task in step.tasks}
        for turn in turns:
            yield self._call("task", 1)
            task = tasks[turn.task]
            yield from self._task(node, task, turn.microbatch, updated)
        yield from self._task(node, step.after, None, updated)

    def _task(
        self, node: str, task: Task, microbatch: int | None, updated: set[int]
    ) -> Iterator[Item]:
        if task.totals:
            yield self._call("other call", 1, "microbatch_totals")
        for unit in task.units:
            yield from self._unit(node, unit, microbatch, updated)

    def _call(
        self, entry: str, size: int, name: str = "", kind: Kind = "calls"
    ) -> Item:
        return Item(name or entry, {kind: self.costs.times(entry, size)})

    def _unit(
        self, node: str, unit: Unit, microbatch: int | None, updated: set[int]
    ) -> Iterator[Item]:
        if unit.computed:
            key = id(unit), self.step.node_classes.representative(node) == node
            if key not in self._of_unit:
                self._of_unit[key] = self._function(node, unit)
            if (item := self._of_unit[key]) is not None:
                yield item
            return
        first = unit.ops[0]
        structure = first.structure
        if structure.sends or structure.receives:
            yield from self._exchange(node, first, microbatch)
        elif structure.update == "value":
            yield self._update(node, first, updated)
        elif structure.copies:
            elements = self._bytes(node, first.operands, microbatch)
            yield self._call("copy to a device", elements, first.kind, "messages")
        elif structure.reduces is not None:
            operands = [op.operands[0] for op in unit.ops]
            yield self._sum(node, operands, microbatch)
        elif first.kind == "read":
            names = [op.name for op in unit.ops]
            yield self._call("read", self._bytes(node, names, microbatch))
        elif first.kind == "record":
            yield self._call("record", len(unit.ops))
        elif first.kind == "store":
            # Updates also store. All other values are stored in one call.
            if not is_update(self.graph.producers[first.operands[1]].kind) and (
                _STORE not in updated
            ):
                updated.add(_STORE)
                yield self._call("other call", 1, "store")
        elif structure.in_table or first.kind == "distinct_keys":
            yield self._rows_by_key(first, microbatch)
        elif not structure.aliases and first.kind not in ("sparse_table", "delta"):
            yield self._call("other call", 1, first.kind)

    def _function(self, node: str, unit: Unit) -> Item | None:
        """Return the item of a jitted function; None if nothing is computed."""
        times = self.functions.times_of(unit, node)
        if times is None:
            return None
        busy: dict[Kind, Times] = {"compute": times.compute, "calls": times.call}
        return Item(", ".join(times.groups), busy)

    # Calls of the node.

    def _bytes(self, node: str, names: Iterable[str], microbatch: int | None) -> int:
        return sum(self._value_bytes(node, name, microbatch) for name in names)

    def _value_bytes(self, node: str, name: str, microbatch: int | None) -> int:
        """Return the bytes of a value on a node, in one microbatch if it is of one."""
        graph = self.graph
        value, op = graph.values[name], graph.producers[name]
        parts = graph.microbatches if value.microbatch_layout == "S" else 1
        batch = graph.batch // parts
        if isinstance(value.type, TensorType) and value.type.is_keyed:
            return 0
        whole = value.type.nbytes(batch)
        shared = value.layout in ("S", "F")
        return whole // len(graph.nodes(op)) if shared else whole

    def _sum(self, node: str, names: Sequence[str], microbatch: int | None) -> Item:
        if not microbatch:  # the first values are stored
            return self._call("other call", 1, "sum_microbatches", "sums")
        times = add(
            self.costs.times(
                "sum of microbatches: arrays", count_arrays(self.graph, names)
            ),
            self.costs.times(
                "sum of microbatches: bytes", self._bytes(node, names, microbatch)
            ),
        )
        return Item("sum_microbatches", {"sums": times})

    def _update(self, node: str, op: Op, updated: set[int]) -> Item:
        """Return the update of one parameter; the first of a table also has its base."""
        graph = self.graph
        entry = self.costs.entry_of_update(op.kind)
        name = op.operands[1]
        kind = graph.tensor_type(op.operands[0])
        if kind.is_keyed:
            elements = count_keys(graph, name, graph.batch) * prod(_ints(kind))
            elements //= len(graph.nodes(op))
        else:
            elements = prod(_ints(kind))
            if graph.values[name].flat is not None:
                low, high = graph.ranges(name).of(graph.nodes(op).index(node))
                elements = high - low
        times = self.costs.times(entry, elements)
        if op.attrs["group"] in updated:
            base = self.costs.times(entry, 0)
            times = tuple(t - b for t, b in zip(times, base, strict=True))
        updated.add(op.attrs["group"])
        return Item(f"update {op.operands[0]}", {"compute": times})

    def _rows_by_key(self, op: Op, microbatch: int | None) -> Item:
        graph = self.graph
        rows = graph.batch // (graph.microbatches if graph.is_repeated(op) else 1)
        names = [*(value.name for value in op.results), *op.operands]
        keys = max(
            (
                count_keys(graph, name, rows)
                for name in names
                if is_keyed(graph, name)
                and graph.producers[name].kind != "sparse_table"
            ),
            default=0,
        )
        return self._call(
            "rows by key", keys // len(graph.nodes(op)), op.kind, "compute"
        )

    # Messages.

    def _exchange(self, node: str, op: Op, microbatch: int | None) -> Iterator[Item]:
        """Yield the items of an op that sends a message, receives one, or does both."""
        if (edge := op.sent_edge) is not None:
            yield self._send(node, edge, microbatch)
        if (edge := op.received_edge) is not None:
            yield self._receive(node, edge, microbatch)

    def _send(self, node: str, edge: int, microbatch: int | None) -> Item:
        number = self._microbatch_of(edge, microbatch)
        busy, sends = [NOTHING], []
        for each in self._messages_of(edge):
            if each.source == node:
                busy.append(self._message_times("send", edge, each))
                route = edge, number, node, each.target
                every = self.graph.sends[edge].attrs.get("every", 1)
                sends.append((route, _crossing(each) // every))
        return Item(f"send {edge}", {"messages": add(*busy)}, (), tuple(sends))

    def _receive(self, node: str, edge: int, microbatch: int | None) -> Item:
        number = self._microbatch_of(edge, microbatch)
        busy, waits = [NOTHING], []
        for each in self._messages_of(edge):
            if each.target == node:
                busy.append(self._message_times("receive", edge, each))
                waits.append((edge, number, each.source, node))
        # Nobody waits for the messages of asynchronous tables.
        if self.graph.sends[edge].is_asynchronous:
            waits = []
        return Item(f"receive {edge}", {"messages": add(*busy)}, tuple(waits))

    def _microbatch_of(self, edge: int, microbatch: int | None) -> int | None:
        graph = self.graph
        return microbatch if graph.is_repeated(graph.sends[edge]) else None

    def _messages_of(self, edge: int) -> tuple[Message, ...]:
        if edge not in self._messages:
            self._messages[edge] = messages_of(self.graph, edge)
        return self._messages[edge]

    def _message_times(self, entry: str, edge: int, message: Message) -> Times:
        times = self.costs.times(entry, message.nbytes // message.parts)
        count, every = message.parts, self.graph.sends[edge].attrs.get("every", 1)
        return tuple(t * count // every for t in times)


def _crossing(message: Message) -> int:
    """Return the bytes that a message moves between processes."""
    same = NodeId(message.source).process == NodeId(message.target).process
    return 0 if same else message.nbytes


def _ints(kind: TensorType) -> tuple[int, ...]:
    """Return the dimensions of a type that are numbers."""
    return tuple(d for d in kind.shape if isinstance(d, int))
