"""How a node reads a source, beside which inputs it takes from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from placer.readers.column import Column

TOGETHER = 256
"""Rows that are taken together, and after which a reader reports how many it has: few,
so that they stay in the cache."""
MOST_ROWS = 100_000_000
"""The most rows that a function may yield."""


def nobody(rows: int) -> None:
    """The report of a reader whose progress nobody watches."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read.

    With `compared`, digests are made of what is read and of `others`, the inputs that
    only other nodes take from the source; `seed` draws the rows that are compared. `report`
    is called with the number of rows read so far. `nbytes` is the most memory that the
    rows of a function that yields them may take; None for no limit.
    """

    others: tuple[Column, ...] = ()
    compared: bool = False
    seed: int = 0
    report: Callable[[int], None] = nobody
    nbytes: int | None = None
