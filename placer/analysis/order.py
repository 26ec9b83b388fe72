"""In what order the ops of a step run: at which level at the earliest, and within one.

A level begins where messages come in; the ops of a level go through phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from placer.analysis.levels import Step, levels, of_halves
from placer.graph.graph import TOGETHER, Graph, Op
from placer.graph.kinds import (
    COPIES,
    EXITS,
    MESSAGES,
    is_computed,
    is_direction,
    is_update,
)


class Phase(IntEnum):
    """Within a level: what is read, while others make what comes in; what comes in; what
    enters, and is copied to where it is used; what is computed, and copied to where it
    is taken; what is updated, cut and recorded; what goes out."""

    READ = 0
    IN = 1
    ENTRY = 2
    COPY_IN = 3
    COMPUTE = 4
    COPY_OUT = 5
    EXIT = 6
    OUT = 7


def phase(graph: Graph, op: Op) -> Phase:
    match op.kind:
        case "read":
            return Phase.READ
        case "listen_and_serv":
            return Phase.IN
        case "parameter" | "assemble":
            return Phase.ENTRY
        case "send":
            return Phase.OUT
        case "split_microbatches" | "first_microbatch":
            return Phase.ENTRY
    if op.kind in COPIES:
        computed = is_computed(graph.producers[op.operands[0]])
        return Phase.COPY_OUT if computed else Phase.COPY_IN
    return Phase.COMPUTE if is_computed(op) else Phase.EXIT


def cost(graph: Graph, op: Op) -> int:
    """How many levels later the results are there: one where a user's phase is over
    when that of the op comes."""
    if op.kind == "cut" or op.kind in COPIES:
        mine = phase(graph, op)
        users = [u for value in op.results for u in graph.uses.get(value.name, ())]
        return int(any(phase(graph, user) < mine for user in users))
    if op.kind in TOGETHER.values():
        return 1
    return of_halves(op)[0]


class Stage(IntEnum):
    """Of a step with microbatches: what comes before the first, what microbatches do and
    have done in between, and what comes after the last."""

    BEFORE = 0
    AMONG = 1
    AFTER = 2


def stages(graph: Graph) -> list[Stage]:
    """The stage of each op: what is made once a step comes before the microbatches or
    after them, unless it takes of some and gives to others. Nothing is updated before
    the last has been through."""
    if graph.microbatches == 1:
        return [Stage.BEFORE] * len(graph.ops)
    late: set[str] = set()  # what waits for microbatches, or for an update
    early: set[str] = set()  # what they wait for
    found: list[Stage] = []
    for op in graph.ops:
        exits = is_update(op.kind) or is_direction(op.kind) or op.kind in EXITS
        gives = _known(op)[1]
        if exits or op.kind in TOGETHER.values() or not late.isdisjoint(_known(op)[0]):
            late.update(gives)
            found.append(Stage.AFTER)
        else:
            found.append(Stage.BEFORE)
    for i in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[i]
        takes, gives = _known(op)
        between = found[i] == Stage.AFTER and not early.isdisjoint(gives)
        if between or graph.is_repeated(op):
            found[i] = Stage.AMONG
        if found[i] == Stage.AMONG:
            early.update(takes)
    return found


def _known(op: Op) -> tuple[Sequence[str], Sequence[str]]:
    """What an op takes and gives, a message too."""
    takes: Sequence[str] = op.operands
    gives: Sequence[str] = [value.name for value in op.results]
    if op.kind in MESSAGES:
        edge = (f"edge {op.attrs['edge']}",)
        return (takes, edge) if op.kind == "send" else (edge, gives)
    return takes, gives


def earliest(graph: Graph) -> list[int]:
    """The level of each op of a transferred graph, at the earliest."""
    return levels([_step(graph, op) for op in graph.ops])


def _step(graph: Graph, op: Op) -> Step:
    takes, gives = _known(op)
    after = 1 if op.kind == "send" else cost(graph, op)
    return Step(takes, gives, after, of_halves(op)[1])
