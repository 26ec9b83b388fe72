"""The order of the ops of a step: their levels, and the order within a level.

A level starts where messages arrive. Within a level, ops run by `LevelPhase`. In a step
with microbatches, all this repeats for each microbatch, in the part of the step that
`LoopPart.INSIDE` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from placer.analysis.levels import LevelItem, compute_levels, delay_and_group
from placer.graph.graph import MICROBATCH_REDUCTIONS, Graph, Op
from placer.graph.kinds import (
    COPIES,
    MESSAGES,
    SINKS,
    is_computed,
    is_update,
    is_update_direction,
)


class LevelPhase(IntEnum):
    """The phases of a level, in the order in which a node runs them."""

    READ = 0
    """Inputs are read first, while other nodes prepare the messages of this level."""
    RECEIVE = 1
    """Messages arrive."""
    ENTRY = 2
    """Parameters are read or assembled, and values are distributed over
    microbatches."""
    COPY_IN = 3
    """What was not computed is copied to the devices that use it."""
    COMPUTE = 4
    """Jitted functions run."""
    COPY_OUT = 5
    """What was computed is copied to the devices that use it."""
    EXIT = 6
    """Parameters are updated, gradients are cut, metrics are recorded, and the values
    of microbatches are reduced."""
    SEND = 7
    """Messages are sent last: everything that they can carry is there."""


def level_phase(graph: Graph, op: Op) -> LevelPhase:
    """Return the phase of an op within its level."""
    match op.kind:
        case "read":
            return LevelPhase.READ
        case "listen_and_serv":
            return LevelPhase.RECEIVE
        case "parameter" | "assemble":
            return LevelPhase.ENTRY
        case "send":
            return LevelPhase.SEND
        case "split_microbatches" | "first_microbatch":
            return LevelPhase.ENTRY
    if op.kind in COPIES:
        is_result = is_computed(graph.producers[op.operands[0]])
        return LevelPhase.COPY_OUT if is_result else LevelPhase.COPY_IN
    return LevelPhase.COMPUTE if is_computed(op) else LevelPhase.EXIT


def level_delay(graph: Graph, op: Op) -> int:
    """Return how many levels after the op its results are available.

    It is 1 if some user belongs to an earlier phase than the op: within the same level,
    that phase has ended when the op runs.
    """
    if op.kind == "cut" or op.kind in COPIES:
        own_phase = level_phase(graph, op)
        users = [u for value in op.results for u in graph.uses.get(value.name, ())]
        return int(any(level_phase(graph, user) < own_phase for user in users))
    if op.kind in MICROBATCH_REDUCTIONS.values():
        return 1
    return delay_and_group(op)[0]


class LoopPart(IntEnum):
    """Where an op of a step is in relation to the loop over the microbatches."""

    BEFORE = 0
    """Once, before the first microbatch."""
    INSIDE = 1
    """For each microbatch, or once between two of them."""
    AFTER = 2
    """Once, after the last microbatch."""


def loop_parts(graph: Graph) -> list[LoopPart]:
    """Return the loop part of each op.

    An op that runs once a step is BEFORE, unless it depends on microbatches. Then it is
    AFTER, unless other microbatch ops depend on it: such an op is INSIDE, between the
    last microbatch that it waits for and the first that waits for it. Updates and
    records are never BEFORE: no parameter changes until the last microbatch has passed.
    """
    if graph.microbatches == 1:
        return [LoopPart.BEFORE] * len(graph.ops)
    late: set[str] = set()  # depends on microbatches or updates
    parts: list[LoopPart] = []
    for op in graph.ops:
        is_exit = is_update(op.kind) or is_update_direction(op.kind) or op.kind in SINKS
        uses, defines = _uses_and_definitions(op)
        is_reduction = op.kind in MICROBATCH_REDUCTIONS.values()
        if is_exit or is_reduction or not late.isdisjoint(uses):
            late.update(defines)
            parts.append(LoopPart.AFTER)
        else:
            parts.append(LoopPart.BEFORE)
    # From the end: what a microbatch op needs cannot be AFTER.
    awaited: set[str] = set()
    for i in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[i]
        uses, defines = _uses_and_definitions(op)
        is_between = parts[i] == LoopPart.AFTER and not awaited.isdisjoint(defines)
        if is_between or graph.is_repeated(op):
            parts[i] = LoopPart.INSIDE
        if parts[i] == LoopPart.INSIDE:
            awaited.update(uses)
    return parts


def _uses_and_definitions(op: Op) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names that an op uses and defines. A message counts as a value, which
    `send` defines and `listen_and_serv` uses."""
    uses: Sequence[str] = op.operands
    defines: Sequence[str] = [value.name for value in op.results]
    if op.kind in MESSAGES:
        edge = (f"edge {op.attrs['edge']}",)
        return (uses, edge) if op.kind == "send" else (edge, defines)
    return uses, defines


def earliest_levels(graph: Graph) -> list[int]:
    """Return the earliest level of each op. The graph is transferred."""
    return compute_levels([_level_item(graph, op) for op in graph.ops])


def _level_item(graph: Graph, op: Op) -> LevelItem:
    uses, defines = _uses_and_definitions(op)
    delay = 1 if op.kind == "send" else level_delay(graph, op)
    return LevelItem(uses, defines, delay, delay_and_group(op)[1])
