"""Lists the arrays of traced functions that are never trained."""

from __future__ import annotations

from collections.abc import Iterator

from placer.plan.plan import Plan
from placer.system.listed import list_names

MAX_NAMED = 8


def untrained_lines(plan: Plan, limit: int | None = MAX_NAMED) -> Iterator[str]:
    """Yield one line for each traced function that has arrays which are never trained."""
    for name, arrays in plan.untrained.items():
        yield f"never trained in '{name}': {list_names(arrays, limit)}"
