"""segment: group the computed ops of a node into jitted functions.

Needs a graph with copies. Afterwards every computed op has the attribute `segment`, the
level at which it runs. The ops of one level on the same devices of a node form one jitted
function. A new level starts only where a message, or a copy of computed values, arrives.

An op may run at any level between the first that its operands allow and the last that its
users allow. It runs at the first level where its place has other work, else at the last
level, so that no function is created for it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.compiler.graph.graph import Graph
from placer.compiler.graph.order import (
    LoopPart,
    earliest_levels,
    level_delay,
    level_phase,
    loop_parts,
)


def segment(graph: Graph) -> Graph:
    """Run the pass."""
    earliest = earliest_levels(graph)
    latest = _latest_levels(graph, earliest)
    workers = _number_workers(graph)
    busy_levels = _busy_levels(graph, workers, earliest, latest)
    timed = []
    available_at: dict[str, int] = {}  # the level of each value
    device_numbers: dict[str, int] = {}  # in the order of first use
    parts = loop_parts(graph)
    for op, first, last, part in zip(graph.ops, earliest, latest, parts, strict=True):
        repeated = graph.is_repeated(op)
        level = first
        if op.structure.level != "fixed":
            # An operand at another place may have moved to a later level.
            level = max((first, *(available_at[name] for name in op.operands)))
            if op.structure.level != "early":
                # A computed op should run when its devices have work, other ops when
                # their nodes have work.
                at_place, on_nodes = workers[id(op.place)]
                worker = at_place if op.is_computed else on_nodes
                busy = busy_levels.get((worker, repeated), ())
                level = next((i for i in range(level, last) if i in busy), last)
        after = level + level_delay(graph, op)
        available_at.update((value.name, after) for value in op.results)
        device_number = 0
        if op.is_computed:
            device_number = device_numbers.setdefault(
                graph.devices(op), len(device_numbers)
            )
        within = level, repeated, level_phase(graph, op), device_number
        if part == LoopPart.INSIDE or op.is_computed:
            op = op.with_attrs(segment=level)
        timed.append((not op.is_once, part, within, op))
    timed.sort(key=lambda entry: entry[:3])
    return graph.with_ops(op for *_, op in timed)


def _number_workers(graph: Graph) -> dict[int, tuple[int, int]]:
    """Return a number for each place and for its nodes, by the id of the place."""
    # Equal places share a number, and so do equal sets of nodes.
    numbers: dict[object, int] = {}
    workers: dict[int, tuple[int, int]] = {}
    for op in graph.ops:
        if id(op.place) not in workers:
            place = numbers.setdefault(op.place, len(numbers))
            nodes = numbers.setdefault(graph.nodes(op), len(numbers))
            workers[id(op.place)] = place, nodes
    return workers


def _busy_levels(
    graph: Graph,
    workers: Mapping[int, tuple[int, int]],
    earliest: Sequence[int],
    latest: Sequence[int],
) -> dict[tuple[int, bool], set[int]]:
    """Return the levels at which places and nodes certainly have computed ops."""
    # A computed op certainly runs at its latest level, where users wait for it, or, if it
    # uses a received value, at its earliest level. Keys: the number of a place or its
    # nodes, and whether the ops run once per microbatch.
    busy_levels: dict[tuple[int, bool], set[int]] = {}
    received: set[str] = set()  # received values, and their copies
    for op, first, last in zip(graph.ops, earliest, latest, strict=True):
        uses_received = not received.isdisjoint(op.operands)
        if op.is_computed:
            repeated = graph.is_repeated(op)
            for worker in workers[id(op.place)]:
                levels = busy_levels.setdefault((worker, repeated), set())
                levels.update((first, last) if uses_received else (last,))
        elif op.structure.receives or (
            uses_received and (op.structure.copies or not op.structure.allocates)
        ):
            received.update(value.name for value in op.results)
    return busy_levels


def _latest_levels(graph: Graph, earliest: Sequence[int]) -> list[int]:
    """Return the latest level at which each op does not delay its users."""
    # Fixed ops and unused results keep their earliest level.
    needed_at: dict[str, int] = {}
    latest = list(earliest)
    for i in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[i]
        if op.structure.level != "fixed":
            users = [needed_at[v.name] for v in op.results if v.name in needed_at]
            delay = level_delay(graph, op)
            latest[i] = min(users, default=earliest[i] + delay) - delay
        for name in op.operands:
            needed_at[name] = min(needed_at.get(name, latest[i]), latest[i])
    return latest
