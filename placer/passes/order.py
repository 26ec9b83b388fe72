"""In what order the ops of a step run: at which level at the earliest, and within one.

A level begins where messages come in; the ops of a level go through phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from placer.graph.graph import Graph, Op
from placer.graph.structure import COPIES, is_computed
from placer.passes.levels import Step, levels, of_halves


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
    return of_halves(op)[0]


def earliest(graph: Graph) -> list[int]:
    """The level of each op of a transferred graph, at the earliest."""
    return levels([_step(graph, op) for op in graph.ops])


def _step(graph: Graph, op: Op) -> Step:
    if op.kind == "send":
        return Step(op.operands, (f"edge {op.attrs['edge']}",), 1)
    takes: Sequence[str] = op.operands
    if op.kind == "listen_and_serv":
        takes = (f"edge {op.attrs['edge']}",)
    gives = [value.name for value in op.results]
    return Step(takes, gives, cost(graph, op), of_halves(op)[1])
