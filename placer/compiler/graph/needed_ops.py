"""Finds the ops that other ops need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from placer.compiler.graph.graph import Op


def needed_ops(
    ops: Sequence[Op],
    is_root: Callable[[Op], bool],
    operands_of: Callable[[Op], Iterable[str]] = attrgetter("operands"),
) -> list[Op]:
    """Return the roots and all ops that they need, in program order.

    Args:
        ops: All ops, in program order.
        is_root: Whether an op is a root.
        operands_of: Returns the operands that an op needs.
    """
    needed: set[str] = set()
    kept: list[Op] = []
    for op in reversed(ops):
        if is_root(op) or any(value.name in needed for value in op.results):
            needed.update(operands_of(op))
            kept.append(op)
    kept.reverse()
    return kept
