"""Lists the first of many names as text."""

from __future__ import annotations

from collections.abc import Sequence


def list_names(names: Sequence[str], most: int | None) -> str:
    """Return the first names with commas between them, and the number of the other ones.

    Args:
        most: the number of names to list; None for all.

    >>> list_names(["a", "b", "c"], 2), list_names(["a", "b"], 2)
    ('a, b and 1 more', 'a, b')
    """
    listed = ", ".join(names[:most])
    more = len(names) - len(names[:most])
    return f"{listed} and {more:,} more" if more else listed
