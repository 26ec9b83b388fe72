"""Levels: how many messages, or first phases of updates, an op must wait for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from placer.compiler.graph.graph import Op
from placer.compiler.graph.structural_ops import is_update_direction


class LevelItem(NamedTuple):
    """An item of a program, reduced to the facts that decide its level.

    Attributes:
        uses: Names that the item waits for.
        defines: Names available `delay` levels after the last item that defines them.
        delay: The number of levels.
        group: Items of one group run at the same level. None: the item is independent.
    """

    uses: Sequence[str]
    defines: Sequence[str]
    delay: int = 0
    group: Hashable = None


def compute_levels(items: Sequence[LevelItem]) -> list[int]:
    """Return the earliest level of each item. The items are in program order.

    Without groups, one pass computes the longest path to each item. A group runs at the
    level of its latest member. This delays the users of all its members, and perhaps
    other groups. So passes repeat with the group levels of the last pass as lower
    bounds, until nothing changes. Bounds only grow, so this ends, provided no group
    depends on itself. The result is the least fixpoint: every item has its earliest
    level.
    """
    group_levels: dict[Hashable, int] = {}
    while True:
        available_at: dict[str, int] = {}
        levels: list[int] = []
        highest: dict[Hashable, int] = {}
        for uses, defines, delay, group in items:
            level = max([available_at[name] for name in uses], default=0)
            if group is not None:
                level = max(level, group_levels.get(group, 0))
                highest[group] = max(level, highest.get(group, 0))
            levels.append(level)
            for name in defines:
                there = max(level + delay, available_at.get(name, 0))
                available_at[name] = there
        if highest == group_levels:
            return levels
        group_levels = highest


def awaited_by(op: Op) -> Sequence[str]:
    """Return the names that an op waits for in a `LevelItem`. These are its operands,
    and the bucket of gradients that must be sent before it."""
    if (number := op.attrs.get("after_bucket")) is None:
        return op.operands
    return *op.operands, _sent_bucket(number)


def sent_buckets(attrs: Mapping[str, Any]) -> Sequence[str]:
    """Return the `LevelItem` name defined by sending a bucket, if `attrs` has one."""
    return [_sent_bucket(attrs["bucket"])] if "bucket" in attrs else []


def _sent_bucket(number: int) -> str:
    return f"bucket {number}"


def level_group(op: Op) -> Hashable:
    """Return the group of an op in a `LevelItem`.

    Each node updates an optimizer's parameters in one table, which computes all update
    directions in one call. So these ops form a group. The call follows the jitted
    functions of its level, so norms of the directions are computed one level later.
    """
    return op.attrs["group"] if is_update_direction(op.kind) else None
