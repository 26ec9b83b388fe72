"""transfer: turn conversions that cross nodes into send and listen_and_serv.

Needs a laid-out graph. Afterwards values cross nodes only as messages, between their
memories. A message is an edge: all values that go from one place to another at the same
level travel together (R6). A level is the number of messages, and of first halves of
updates, that came before. Ops stand in the order of their levels, and within one first
what is received, then what is computed, then what is sent: every node can run its ops
in this order without waiting in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from placer.analysis.levels import Step, levels, of_halves
from placer.graph.graph import TOGETHER, Graph, Op, Value
from placer.graph.kinds import is_conversion, is_once
from placer.layouts.conversions import is_local
from placer.passes.place import first_node
from placer.place import Place


def transfer(graph: Graph, first_edge: int = 1) -> Graph:
    moves = _lowered(graph)
    return _grouped(graph, moves, levels([_step(item) for item in moves]), first_edge)


@dataclass(frozen=True, slots=True)
class _Move:
    """One value on its way from one place to another, layouts as on both sides."""

    operand: Value
    result: Value
    origin: Place
    target: Place
    source: Op

    @property
    def once(self) -> bool:
        return is_once(self.source)


def _lowered(graph: Graph) -> list[Op | _Move]:
    """Conversions as moves; those that move nothing between nodes stay ops. A sum that
    is wanted on several nodes is made at the first and sent on: R5 counts it once."""
    where: dict[str, Place] = {}
    values: dict[str, Value] = {}
    out: list[Op | _Move] = []
    for op in graph.ops:
        assert op.place is not None
        if is_conversion(op.kind):
            operand, result = values[op.operands[0]], op.result
            origin = where[operand.name]
            if _crosses(graph, operand, result, origin, op.place):
                for move in _moves(graph, operand, result, origin, op.place, op):
                    out.append(move)
                    where[move.result.name] = move.target
                    values[move.result.name] = move.result
                continue
        out.append(op)
        for value in op.results:
            where[value.name], values[value.name] = op.place, value
    return out


def _crosses(
    graph: Graph, operand: Value, result: Value, origin: Place, target: Place
) -> bool:
    assert operand.layout is not None
    assert result.layout is not None
    layouts = operand.layout, result.layout
    ways = graph.cluster.nodes(origin), graph.cluster.nodes(target)
    return not is_local(layouts, *ways, graph.cluster.workers)


def _moves(
    graph: Graph, operand: Value, result: Value, origin: Place, target: Place, op: Op
) -> Sequence[_Move]:
    origin, target = map(graph.cluster.in_memory, (origin, target))
    several = len(graph.cluster.nodes(target)) > 1
    if (operand.layout, result.layout) != ("P", "R") or not several:
        return (_Move(operand, result, origin, target, op),)
    first = first_node(graph.cluster, target)
    total = Value(f"{result.name}.sum", result.type, "R", result.over)
    return (
        _Move(operand, total, origin, first, op),
        _Move(total, result, first, target, op),
    )


def _step(item: Op | _Move) -> Step:
    if isinstance(item, _Move):
        return Step((item.operand.name,), (item.result.name,), 1)
    cost, group = of_halves(item)
    cost += item.kind in TOGETHER.values()
    return Step(item.operands, [v.name for v in item.results], cost, group)


@dataclass(frozen=True, slots=True)
class _Edge:
    once: bool
    level: int
    repeated: bool
    origin: Place
    target: Place


def _grouped(
    graph: Graph, moves: Sequence[Op | _Move], at: Sequence[int], first_edge: int
) -> Graph:
    """Send what goes the same way at the same level as one message, in level order."""
    edges: dict[_Edge, list[_Move]] = {}
    timed: list[tuple[bool, int, int, Op]] = []
    for item, level in zip(moves, at, strict=True):
        if isinstance(item, _Move):
            repeated = item.operand.over is not None
            key = _Edge(item.once, level, repeated, item.origin, item.target)
            edges.setdefault(key, []).append(item)
        else:
            timed.append((not is_once(item), level, 1, item))
    order = sorted(edges, key=lambda e: (not e.once, e.level))
    for number, key in enumerate(order, first_edge):
        send, listen = _messages(number, key, edges[key])
        timed.append((not key.once, key.level, 2, send))
        timed.append((not key.once, key.level + 1, 0, listen))
    timed.sort(key=lambda entry: entry[:3])
    return graph.with_ops(op for *_, op in timed)


def _messages(number: int, edge: _Edge, moves: Sequence[_Move]) -> tuple[Op, Op]:
    once = {"once": True} if edge.once else {}
    send = Op(
        "send",
        tuple(move.operand.name for move in moves),
        (),
        {"edge": number, "to": edge.target, **once},
        edge.origin,
        moves[0].source.source,
    )
    listen = Op(
        "listen_and_serv",
        (),
        tuple(move.result for move in moves),
        {"edge": number, "from": edge.origin, **once},
        edge.target,
        moves[0].source.source,
    )
    return send, listen
