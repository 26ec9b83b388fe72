"""The order of the ops of a step: their levels, and the order within a level.

A level starts where messages arrive. Within a level, ops run by `LevelPhase`. In a step
with microbatches, all this repeats for each microbatch, in the part of the step that
`LoopPart.INSIDE` names.
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
    """Return how many levels after the op its results, or its message, are there.

    An op may delay users of an earlier phase: within the same level, that phase has
    ended when the op runs.
    """
    if op.structure.delays_earlier_phases:
        own_phase = level_phase(graph, op)
        # What uses the positions of keys waits for the rows of these keys anyway.
        results = op.results[:1] if op.kind == "distinct_keys" else op.results
        users = [u for value in results for u in graph.uses.get(value.name, ())]
        return int(any(level_phase(graph, user) < own_phase for user in users))
    return op.structure.delay


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
        uses, defines = _uses_and_definitions(op)
        if op.structure.waits_for_microbatches or not late.isdisjoint(uses):
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
    defines: Sequence[str] = [value.name for value in op.results]
    if (sent := op.sent_edge) is not None:
        return op.operands, (f"edge {sent}", *sent_buckets(op.attrs))
    if (received := op.received_edge) is not None:
        return (f"edge {received}",), defines
    return awaited_by(op), defines


def earliest_levels(graph: Graph) -> list[int]:
    """Return the earliest level of each op. The graph is transferred."""
    return compute_levels(
        [
            LevelItem(
                *_uses_and_definitions(op), level_delay(graph, op), level_group(op)
            )
            for op in graph.ops
        ]
    )
