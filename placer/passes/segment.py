"""segment: number the computed ops that a node compiles together.

Needs a graph with its copies. Afterwards every computed op says its `segment`: the ops
of one number on the same devices of one node are one jitted function. A new segment
begins only where a message, or a copy of what was computed, comes in. An op runs in the
first segment that its operands allow and that its place has other work in, else where it
is first used, so none is cut for it alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.analysis.order import Stage, cost, earliest, phase, stages
from placer.graph.graph import Graph, Op
from placer.graph.kinds import (
    COPIES,
    MESSAGES,
    is_computed,
    is_direction,
    is_once,
)


def segment(graph: Graph) -> Graph:
    early = earliest(graph)
    late = _late(graph, early)
    busy = _busy(graph, early, late)
    timed = []
    chosen: dict[str, int] = {}
    devices: dict[str, int] = {}  # numbered, in the order in which they come up
    when = stages(graph)
    for op, first, last, stage in zip(graph.ops, early, late, when, strict=True):
        repeated = graph.is_repeated(op)
        level = first
        if not _is_fixed(op):
            # An operand that another place makes may have been put off.
            level = max((first, *(chosen[name] for name in op.operands)))
            if op.kind not in COPIES:  # those are made as soon as they can be
                work = busy.get((_worker(graph, op), repeated), ())
                level = next((i for i in range(level, last) if i in work), last)
        after = level + cost(graph, op)
        chosen.update((value.name, after) for value in op.results)
        on = 0
        if is_computed(op):
            on = devices.setdefault(graph.devices(op), len(devices))
        within = level, repeated, phase(graph, op), on
        if stage == Stage.AMONG or is_computed(op):
            op = op.with_attrs(segment=level)
        timed.append((not is_once(op), stage, within, op))
    timed.sort(key=lambda entry: entry[:3])
    return graph.with_ops(op for *_, op in timed)


def _is_fixed(op: Op) -> bool:
    """Whether the op runs as early as it can, whoever waits for it."""
    return op.kind in MESSAGES or is_direction(op.kind)


def _worker(graph: Graph, op: Op) -> object:
    """Who has work when the op is best done: its devices, if it is computed there, else
    the nodes that it is on."""
    return op.place if is_computed(op) else graph.nodes(op)


def _busy(
    graph: Graph, early: Sequence[int], late: Sequence[int]
) -> dict[object, set[int]]:
    """The levels at which each place, and its nodes, have work that is repeated, or that
    is not: what is wanted then, and what comes in then feeds."""
    busy: dict[object, set[int]] = {}
    fresh: set[str] = set()
    for op, first, last in zip(graph.ops, early, late, strict=True):
        fed = not fresh.isdisjoint(op.operands)
        if is_computed(op):
            repeated = graph.is_repeated(op)
            for worker in (op.place, graph.nodes(op)):
                found = busy.setdefault((worker, repeated), set())
                found.update((first, last) if fed else (last,))
        elif op.kind == "listen_and_serv" or (fed and op.kind in (*COPIES, "assemble")):
            fresh.update(value.name for value in op.results)
    return busy


def _late(graph: Graph, early: Sequence[int]) -> list[int]:
    """The level at which each op is first used; messages stay as early as they are."""
    wanted: dict[str, int] = {}
    late = list(early)
    for i in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[i]
        if not _is_fixed(op):
            users = [wanted[v.name] for v in op.results if v.name in wanted]
            after = cost(graph, op)
            late[i] = min(users, default=early[i] + after) - after
        for name in op.operands:
            wanted[name] = min(wanted.get(name, late[i]), late[i])
    return late
