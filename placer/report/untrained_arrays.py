"""Lists the arrays of traced functions that are never trained."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from placer.plan.plan import Plan

MAX_NAMED = 8


def untrained_lines(plan: Plan, limit: int | None = MAX_NAMED) -> Iterator[str]:
    """Yield one line for each traced function that has arrays which are never trained."""
    for name, arrays in plan.untrained.items():
        named = ", ".join(islice(arrays, limit))
        more = len(arrays) - len(arrays[:limit])
        and_more = f" and {more} more" if more else ""
        yield f"never trained in '{name}': {named}{and_more}"
