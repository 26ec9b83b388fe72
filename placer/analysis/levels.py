"""Levels: how many messages, and first halves of updates, come before an op."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from placer.graph.graph import Op
from placer.graph.kinds import is_direction


class Step(NamedTuple):
    """What is known after it has run: `gives`, and `cost` levels later. Steps of one
    `group` run together, at one level."""

    takes: Sequence[str]
    gives: Sequence[str]
    cost: int = 0
    group: Hashable = None


def levels(steps: Sequence[Step]) -> list[int]:
    """The level at which each step, in program order, can run at the earliest."""
    floor: dict[Hashable, int] = {}
    while True:
        known: dict[str, int] = {}
        found: list[int] = []
        highest: dict[Hashable, int] = {}
        for takes, gives, cost, group in steps:
            level = max([known[name] for name in takes], default=0)
            if group is not None:
                level = max(level, floor.get(group, 0))
                highest[group] = max(level, highest.get(group, 0))
            found.append(level)
            for name in gives:
                known[name] = level + cost
        if highest == floor:
            return found
        floor = highest


def of_halves(op: Op) -> tuple[int, Hashable]:
    """The cost and the group of an op: the directions of an optimizer, whose parameters
    share a table on each node, are found at once."""
    return (1, op.attrs["group"]) if is_direction(op.kind) else (0, None)
