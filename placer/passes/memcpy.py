"""memcpy: copy what an op takes to the devices that it runs on.

Needs a transferred graph. Afterwards every op finds its operands on its own devices:
what another device of the node holds is copied by `memcpy_h2d` from the node's memory,
`memcpy_d2h` to it, or `memcpy_d2d`. A value is copied once for all its users on the same
devices (R6), and values that go the same way at the same level are copied together.
What is read, sent, received, cut and recorded is in the node's memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from placer.analysis.order import Phase, earliest, phase
from placer.graph.fresh_names import fresh
from placer.graph.graph import Graph, Op, Value
from placer.graph.kinds import COPIES, is_once
from placer.place import Place
from placer.types import TensorType


def memcpy(graph: Graph) -> Graph:
    wanted = _wanted(graph)
    if not wanted:
        return graph
    return _together(_one_by_one(graph, wanted))


def _wanted(graph: Graph) -> dict[str, dict[str, list[Op]]]:
    """Who takes a value on other devices than it is made on: by value and devices."""
    found: dict[str, dict[str, list[Op]]] = {}
    made_on: dict[str, str] = {}
    for op in graph.ops:
        here = graph.devices(op)
        for name in dict.fromkeys(op.operands):
            if made_on[name] != here:
                found.setdefault(name, {}).setdefault(here, []).append(op)
        made_on.update((value.name, here) for value in op.results)
    return found


def _one_by_one(graph: Graph, wanted: Mapping[str, Mapping[str, list[Op]]]) -> Graph:
    """Every copy as an op of its own, after what it copies."""
    taken = set(graph.values)
    names: dict[tuple[str, str], str] = {}
    out: list[Op] = []
    for op in graph.ops:
        here = graph.devices(op)
        operands = tuple([names.get((name, here), name) for name in op.operands])
        out.append(op if operands == op.operands else op.of(operands, op.results))
        for value in op.results:
            for there, users in wanted.get(value.name, {}).items():
                out.append(_copy(graph, op, value, users, taken))
                names[value.name, there] = out[-1].name
    return graph.with_ops(out)


def _copy(graph: Graph, op: Op, value: Value, users: list[Op], taken: set[str]) -> Op:
    """The copy of a value for those users, on the nodes where they are: of a value that
    is split or a sum, on all that have a part."""
    assert op.place is not None
    (devices,) = {graph.devices(user) for user in users}
    assert users[0].place is not None
    nodes = graph.nodes(op)
    if value.layout == "R":
        needed = {node for user in users for node in graph.nodes(user)}
        nodes = tuple(node for node in nodes if node in needed)
    ids = tuple(int(node.rpartition(":")[2]) for node in nodes)
    there = users[0].place
    place = Place(op.place.node, ids, there.device, there.device_ids)
    way = _way(graph, op.place, devices)
    name = fresh(f"{value.name}.{way}", taken)
    return Op(
        f"memcpy_{way}",
        (value.name,),
        (Value(name, value.type, value.layout, value.over),),
        {"once": True} if is_once(op) else {},
        graph.cluster.canonical(place),
        op.source,
    )


def _way(graph: Graph, origin: Place, devices: str) -> str:
    memory = graph.cluster.devices(graph.cluster.in_memory(origin))
    if graph.cluster.devices(origin) == memory:
        return "h2d"
    return "d2h" if devices == memory else "d2d"


@dataclass(frozen=True, slots=True)
class _Way:
    """What copies that are made together have in common."""

    once: bool
    level: int
    repeated: bool
    phase: Phase
    kind: str
    origin: str
    place: Place


def _together(graph: Graph) -> Graph:
    """Copies that go the same way as one op, and all ops in the order of their levels
    and phases."""
    groups: dict[_Way, list[Op]] = defaultdict(list)
    timed: list[tuple[tuple[bool, int, bool, Phase], Op]] = []
    for op, level in zip(graph.ops, earliest(graph), strict=True):
        when = not is_once(op), level, graph.is_repeated(op), phase(graph, op)
        if op.kind in COPIES:
            origin = graph.devices(graph.producers[op.operands[0]])
            assert op.place is not None
            groups[_Way(*when, op.kind, origin, op.place)].append(op)
        else:
            timed.append((when, op))
    for way, copies in groups.items():
        when = way.once, way.level, way.repeated, way.phase
        timed.append((when, _joined(graph, copies)))
    timed.sort(key=lambda each: each[0])
    return graph.with_ops(op for _, op in timed)


def _joined(graph: Graph, copies: list[Op]) -> Op:
    """One op of all copies: first what is split by rows over several devices."""
    first = copies[0]
    assert first.place is not None
    several = len(graph.cluster.device_ids(first.place)) > 1
    attrs = dict(first.attrs)
    if several and any(map(_has_rows, copies)):
        copies = sorted(copies, key=lambda copy: not _has_rows(copy))
        attrs["rows"] = sum(map(_has_rows, copies))
    return Op(
        first.kind,
        tuple(copy.operands[0] for copy in copies),
        tuple(copy.result for copy in copies),
        attrs,
        first.place,
        first.source,
    )


def _has_rows(copy: Op) -> bool:
    kind = copy.result.type
    return isinstance(kind, TensorType) and kind.has_rows
