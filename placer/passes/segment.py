"""segment: number the computed ops that a node compiles together.

Needs a transferred graph. Afterwards every computed op says its `segment`: the ops of
one number on one host are one jitted function. A new segment begins only where a
message comes in. An op runs in the first segment that its operands allow and that its
place has other work in, else where it is first used, so none is cut for it alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from placer.graph.graph import Graph, Op
from placer.graph.structure import is_computed, is_direction, is_once
from placer.passes.levels import Step, levels, of_halves
from placer.place import Place


def segment(graph: Graph) -> Graph:
    early = _early(graph)
    late = _late(graph, early)
    busy = _busy(graph, early, late)
    timed = []
    chosen: dict[str, int] = {}
    for op, first, last in zip(graph.ops, early, late, strict=True):
        level = first
        if op.kind not in ("send", "listen_and_serv") and not is_direction(op.kind):
            work = busy.get(op.place, ())
            # An operand that another place makes may have been put off.
            level = max((first, *(chosen[name] for name in op.operands)))
            level = next((i for i in range(level, last) if i in work), last)
        after = level + _cost(graph, op)
        chosen.update((value.name, after) for value in op.results)
        if is_computed(op):
            op = op.with_attrs(segment=level)
        timed.append((not is_once(op), level, _phase(op), op))
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


def _phase(op: Op) -> int:
    """Within a level: what is read, while others make what comes in; what comes in,
    what enters, what is computed, what leaves, what goes out."""
    match op.kind:
        case "read":
            return 0
        case "listen_and_serv":
            return 1
        case "parameter" | "assemble":
            return 2
        case "send":
            return 5
    return 3 if is_computed(op) else 4


def _early(graph: Graph) -> list[int]:
    """The level of each op, at the earliest."""
    return levels([_step(graph, op) for op in graph.ops])


def _step(graph: Graph, op: Op) -> Step:
    if op.kind == "send":
        return Step(op.operands, (f"edge {op.attrs['edge']}",), 1)
    takes = (
        (f"edge {op.attrs['edge']}",) if op.kind == "listen_and_serv" else op.operands
    )
    gives = [value.name for value in op.results]
    return Step(takes, gives, _cost(graph, op), of_halves(op)[1])


def _cost(graph: Graph, op: Op) -> int:
    """How many levels later the results are there: a cut is made between segments."""
    if op.kind == "cut":
        return int(any(is_computed(user) for user in graph.uses.get(op.name, ())))
    return of_halves(op)[0]


def _late(graph: Graph, early: Sequence[int]) -> list[int]:
    """The level at which each op is first used; messages stay as early as they are."""
    wanted: dict[str, int] = {}
    late = list(early)
    for i in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[i]
        if op.kind not in ("send", "listen_and_serv") and not is_direction(op.kind):
            users = [wanted[v.name] for v in op.results if v.name in wanted]
            late[i] = min(users, default=early[i] + _cost(graph, op)) - _cost(graph, op)
        for name in op.operands:
            wanted[name] = min(wanted.get(name, late[i]), late[i])
    return late
