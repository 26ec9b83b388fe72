"""Orders the ops of a step: by level, and within a level.

A level starts where messages arrive. Within a level, ops run by `LevelPhase`. With
microbatches, the ops that are `LoopPart.INSIDE` run again for each microbatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from placer.compiler.graph.graph import Graph, Op
from placer.compiler.graph.levels import (
    LevelItem,
    awaited_by,
    compute_levels,
    level_group,
    sent_buckets,
)
from placer.compiler.graph.structural_kind import LevelPhase


def level_phase(graph: Graph, op: Op) -> LevelPhase:
    """Return the phase of an op within its level."""
    structure = op.structure
    if structure.computed_phase is None or not op.operands:
        return structure.phase
    computed = graph.producers[op.operands[0]].is_computed
    return structure.computed_phase if computed else structure.phase


def level_delay(graph: Graph, op: Op) -> int:
    """Return how many levels after the op its results, or its message, become
    available. An op may delay users with an earlier phase: that phase has ended when
    the op runs."""
    if op.structure.delays_earlier_phases:
        own_phase = level_phase(graph, op)
        # Users of the keys' positions wait for the rows of these keys anyway.
        results = op.results[:1] if op.kind == "distinct_keys" else op.results
        users = [u for value in results for u in graph.uses.get(value.name, ())]
        return int(any(level_phase(graph, user) < own_phase for user in users))
    return op.structure.delay


class LoopPart(IntEnum):
    """The position of an op relative to the loop over microbatches."""

    BEFORE = 0
    """Once, before the first microbatch."""
    INSIDE = 1
    """For each microbatch, or once between two of them."""
    AFTER = 2
    """Once, after the last microbatch."""


def loop_parts(graph: Graph) -> list[LoopPart]:
    """Return the loop part of each op.

    An op that runs once a step is BEFORE if it does not depend on microbatches.
    Otherwise it is AFTER, unless ops of microbatches depend on it. Such an op is
    INSIDE: after the last microbatch that it needs, and before the first that needs it.
    Updates and records are never BEFORE: parameters stay constant until the last
    microbatch has passed.
    """
    if graph.microbatches == 1:
        return [LoopPart.BEFORE] * len(graph.ops)
    late: set[str] = set()  # Values that depend on microbatches or updates.
    parts: list[LoopPart] = []
    for op in graph.ops:
        uses, defines = _uses_and_definitions(op)
        if op.structure.waits_for_microbatches or not late.isdisjoint(uses):
            late.update(defines)
            parts.append(LoopPart.AFTER)
        else:
            parts.append(LoopPart.BEFORE)
    # Iterate from the end: an op that a microbatch needs cannot be AFTER.
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
    """Return the names that an op uses and defines. A message counts as a value: `send`
    defines it, and `listen_and_serv` uses it."""
    defines: Sequence[str] = [value.name for value in op.results]
    if (sent := op.sent_edge) is not None:
        return op.operands, (f"edge {sent}", *sent_buckets(op.attrs))
    if (received := op.received_edge) is not None:
        return (f"edge {received}",), defines
    return awaited_by(op), defines


def earliest_levels(graph: Graph) -> list[int]:
    """Return the earliest level of each op. The graph has sends and receives."""
    return compute_levels(
        [
            LevelItem(
                *_uses_and_definitions(op), level_delay(graph, op), level_group(op)
            )
            for op in graph.ops
        ]
    )
