"""memcpy: copy operands to the devices of the ops that use them.

Needs a graph with messages. Afterwards every op has its operands on its own devices. Values
move between the devices of a node by `memcpy_h2d` from host memory, `memcpy_d2h` to host
memory, or `memcpy_d2d`. A value is copied once for all users on the same devices. Copies
between the same devices at the same level are one op. Reading, sending, receiving, cutting
and recording use host memory.
"""

from __future__ import annotations

from collections import defaultdict

from placer.compiler.graph.graph import Graph, Op, Value
from placer.compiler.graph.order import earliest_levels, level_phase
from placer.compiler.graph.rewriter import Rewriter
from placer.compiler.graph.structural_kind import LevelPhase
from placer.place import Place
from placer.place.types import TensorType


def memcpy(graph: Graph) -> Graph:
    """Run the pass."""
    inserted = _insert_copies(graph)
    return graph if inserted is graph else _merge_copies(inserted)


def _insert_copies(graph: Graph) -> Graph:
    """Insert each copy as a separate op, directly after the op that it copies."""
    copies: dict[str, dict[str, str]] = {}  # by devices and value
    rewriter = Rewriter(graph)
    for op in rewriter:
        devices = graph.devices(op)
        rewriter.replace_operands(copies.get(devices, {}))
        for value in op.results:
            elsewhere: dict[str, list[Op]] = {}  # users on other devices
            for user in graph.uses.get(value.name, ()):
                target = graph.devices(user)
                if target != devices and not user.structure.in_table:
                    elsewhere.setdefault(target, []).append(user)
            for target, users in elsewhere.items():
                copy = _copy(rewriter, graph, op, value, users)
                rewriter.insert_after(copy)
                copies.setdefault(target, {})[value.name] = copy.name
    return rewriter.graph()


def _copy(
    rewriter: Rewriter, graph: Graph, op: Op, value: Value, users: list[Op]
) -> Op:
    """Return the copy of a value for some users on the same devices."""
    # A replica is copied on the nodes of the users. In other layouts every node holds a
    # part, so all nodes of the value copy their part.
    place = op.known_place
    (devices,) = {graph.devices(user) for user in users}
    nodes = graph.nodes(op)
    if value.layout == "R":
        user_nodes = {node for user in users for node in graph.nodes(user)}
        nodes = tuple(node for node in nodes if node in user_nodes)
    direction = _direction(graph, place, devices)
    place = graph.cluster.place_of(nodes, users[0].known_place)
    copy = rewriter.new_value(value.name, direction)
    attrs = {"once": True} if op.is_once else {}
    kind = f"memcpy_{direction}"
    return Op(kind, (value.name,), (copy,), attrs, place, op.source)


def _direction(graph: Graph, origin: Place, devices: str) -> str:
    host_memory = graph.cluster.devices(graph.cluster.host_memory(origin))
    if graph.cluster.devices(origin) == host_memory:
        return "h2d"
    return "d2h" if devices == host_memory else "d2d"


_When = tuple[bool, int, bool, LevelPhase]
"""Sort key of ops: `once` ops first, level, unrepeated ops first, phase."""


def _merge_copies(graph: Graph) -> Graph:
    """Merge copies between the same devices at the same level, and sort all ops."""
    # The sort is by level and phase. Asynchronous values are copied when they arrive.
    groups: dict[tuple[_When, str, str, Place, int | None], list[Op]] = defaultdict(
        list
    )
    timed: list[tuple[_When, Op]] = []
    for op, level in zip(graph.ops, earliest_levels(graph), strict=True):
        when = not op.is_once, level, graph.is_repeated(op), level_phase(graph, op)
        if op.structure.copies:
            producer = graph.producers[op.operands[0]]
            origin, at = graph.devices(producer), op.known_place
            edge = producer.attrs["edge"] if "exchange" in producer.attrs else None
            groups[when, op.kind, origin, at, edge].append(op)
        else:
            timed.append((when, op))
    for (when, *_), copies in groups.items():
        timed.append((when, _merge(graph, copies)))
    timed.sort(key=lambda entry: entry[0])
    return graph.with_ops(op for _, op in timed)


def _merge(graph: Graph, copies: list[Op]) -> Op:
    """Return one op for all copies."""
    # If the target is several devices, values with rows come first, and the attribute
    # `rows` is their number. These values are split over the devices; others are
    # replicated.
    first = copies[0]
    has_several_devices = len(graph.cluster.device_ids(first.known_place)) > 1
    attrs = dict(first.attrs)
    if has_several_devices and any(map(_has_rows, copies)):
        copies = sorted(copies, key=lambda copy: not _has_rows(copy))
        attrs["rows"] = sum(map(_has_rows, copies))
    operands = tuple(copy.operands[0] for copy in copies)
    results = tuple(copy.result for copy in copies)
    return Op(first.kind, operands, results, attrs, first.place, first.source)


def _has_rows(copy: Op) -> bool:
    value_type = copy.result.type
    return isinstance(value_type, TensorType) and value_type.has_rows
