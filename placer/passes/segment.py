"""segment: number the computed ops that a node compiles together.

Needs a transferred graph. Afterwards every computed op says its `segment`: the ops of
one number on one host are one jitted function. A new segment begins only where a
message comes in. An op runs in the first segment that its operands allow and that its
place has other work in, else where it is first used, so none is cut for it alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from placer.graph.graph import Graph, Op
from placer.graph.structure import is_structural
from placer.place import Place


def segment(graph: Graph) -> Graph:
    once = constants_of_evaluation(graph)
    early = _early(graph)
    late = _late(graph, early)
    busy = _busy(graph, early, late)
    timed = []
    chosen: dict[str, int] = {}
    for op, first, last in zip(graph.ops, early, late, strict=True):
        level = first
        if op.kind not in ("send", "listen_and_serv"):
            work = busy.get(op.place, ())
            # An operand that another place makes may have been put off.
            level = max((first, *(chosen[name] for name in op.operands)))
            level = next((i for i in range(level, last) if i in work), last)
        chosen.update((value.name, level) for value in op.results)
        varying = not is_once(op, once)
        if is_computed(op):
            op = op.with_attrs(segment=level)
        timed.append((varying, level, _phase(op), op))
    timed.sort(key=lambda entry: entry[:3])
    return graph.with_ops(op for *_, op in timed)


def _busy(
    graph: Graph, early: Sequence[int], late: Sequence[int]
) -> dict[Place | None, set[int]]:
    """The levels at which each place has work: what is wanted then, and what comes in
    then feeds."""
    busy: dict[Place | None, set[int]] = {}
    fresh: set[str] = set()
    for op, first, last in zip(graph.ops, early, late, strict=True):
        fed = not fresh.isdisjoint(op.operands)
        if is_computed(op):
            busy.setdefault(op.place, set()).update((first, last) if fed else (last,))
        elif op.kind == "listen_and_serv" or (fed and op.kind == "assemble"):
            fresh.update(value.name for value in op.results)
    return busy


def is_computed(op: Op) -> bool:
    """Whether the op is part of a jitted function."""
    return not is_structural(op.kind)


def is_once(op: Op, once: AbstractSet[str]) -> bool:
    """Whether all that the op makes, or takes when it makes nothing, is in `once`. A
    metric is recorded for every batch: it counts by the rows of each."""
    if not once or op.kind == "record":
        return False
    names = [value.name for value in op.results] or op.operands
    return all(name in once for name in names)


def constants_of_evaluation(graph: Graph) -> frozenset[str]:
    """Values that depend on no input: an evaluation makes them once, not every batch.
    Empty for a training step, which updates what it starts from."""
    if graph.of_kind("store"):
        return frozenset()
    once: set[str] = set()
    edges: dict[int, Op] = {op.attrs["edge"]: op for op in graph.of_kind("send")}
    for op in graph.ops:
        sent = edges[op.attrs["edge"]] if op.kind == "listen_and_serv" else op
        if op.kind != "read" and all(name in once for name in sent.operands):
            once.update(value.name for value in op.results)
    return frozenset(once)


def _phase(op: Op) -> int:
    """Within a level: what comes in, what enters, what is computed, what leaves, what
    goes out."""
    match op.kind:
        case "listen_and_serv":
            return 0
        case "read" | "parameter" | "assemble":
            return 1
        case "send":
            return 4
    return 2 if is_computed(op) else 3


def _early(graph: Graph) -> list[int]:
    """The number of messages that come before each op, at the least."""
    known: dict[str, int] = {}
    sent: dict[int, int] = {}
    levels: list[int] = []
    for op in graph.ops:
        if op.kind == "listen_and_serv":
            level = sent[op.attrs["edge"]] + 1
        else:
            level = max([known[name] for name in op.operands], default=0)
        if op.kind == "send":
            sent[op.attrs["edge"]] = level
        levels.append(level)
        for value in op.results:
            known[value.name] = level
    return levels


def _late(graph: Graph, early: Sequence[int]) -> list[int]:
    """The level at which each op is first used; messages stay as early as they are."""
    wanted: dict[str, int] = {}
    late = list(early)
    for i in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[i]
        if op.kind not in ("send", "listen_and_serv"):
            users = [wanted[v.name] for v in op.results if v.name in wanted]
            late[i] = min(users, default=early[i])
        for name in op.operands:
            wanted[name] = min(wanted.get(name, late[i]), late[i])
    return late
