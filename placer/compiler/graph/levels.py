"""Levels: how many messages, or first phases of updates, an op has to wait for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from placer.compiler.graph.graph import Op
from placer.compiler.graph.structural_ops import is_update_direction


class LevelItem(NamedTuple):
    """An item of a program, as far as levels depend on it.

    The names that it `defines` are available `delay` levels after the item, and after all
    others that define them. Items of
    one `group` run at the same level; an item without a group is independent.
    """

    uses: Sequence[str]
    defines: Sequence[str]
    delay: int = 0
    group: Hashable = None


def compute_levels(items: Sequence[LevelItem]) -> list[int]:
    """Return the earliest level of each item. The items are in program order.

    Without groups, one pass over the items gives the longest path in levels. A group
    has the level of its latest member, which delays the users of all its members and
    thereby possibly other groups. So the passes repeat, each with the group levels of
    the pass before as lower bounds, until these do not change: a fixpoint. Bounds only
    grow, so this ends, as long as no group depends on itself; it is the least fixpoint,
    so every item has its earliest level.
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
    """Return the names that an op uses in a `LevelItem`: its operands, and the bucket of
    gradients that is sent before."""
    if (number := op.attrs.get("after_bucket")) is None:
        return op.operands
    return *op.operands, _sent_bucket(number)


def sent_buckets(attrs: Mapping[str, Any]) -> Sequence[str]:
    """Return the name that what sends a bucket of gradients, by its attributes, defines in
    a `LevelItem`; nothing for what sends none."""
    return [_sent_bucket(attrs["bucket"])] if "bucket" in attrs else []


def _sent_bucket(number: int) -> str:
    return f"bucket {number}"


def level_group(op: Op) -> Hashable:
    """Return the group of an op in a `LevelItem`.

    The parameters of an optimizer share one table on each node, which computes all
    their update directions in one call: these ops are a group. The call comes after the
    jitted functions of its level, so the norms of the directions are computed a level
    later.
    """
    return op.attrs["group"] if is_update_direction(op.kind) else None
