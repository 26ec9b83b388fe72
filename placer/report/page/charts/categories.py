"""The categories of slices in the order of legends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ORDER: Final = (
    "compute",
    "update",
    "rows",
    "read",
    "copy",
    "record",
    "send",
    "receive",
    "message",
    "wait",
    "step",
    "other",
)
"""Work first, then messages and waiting."""


def categories_in(categories: Iterable[str]) -> list[str]:
    """Return distinct categories in the order of legends; unknown ones are last.

    >>> categories_in(["wait", "compute", "wait", "later"])
    ['compute', 'wait', 'later']
    """
    found = dict.fromkeys(categories)
    known = [each for each in ORDER if each in found]
    return known + [each for each in found if each not in ORDER]
