"""Keeps a table within its capacity, which is divided among its partitions.

A partition above its share is trimmed to fifteen sixteenths of the share. The rows that were seen
least recently, or least often, go first; of equal rows, those with the smallest keys. So the rows that
remain are a function of the table only.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.tables.sparse.state import Array, State

_PART: Final = 16
"""A trimmed partition has this part of its share free."""
_GOLDEN: Final = (5**0.5 - 1) / 2


def shares_of(settings: Settings) -> Array:
    """Return the largest number of rows of each partition, int64[partitions].

    Shares differ by up to a sixteenth. Otherwise all partitions would be trimmed in the same steps,
    because they fill at the same rate.
    """
    assert settings.capacity is not None
    numbers = np.arange(settings.partitions)
    weights = 1 + (numbers * _GOLDEN % 1 - 0.5) / _PART
    ends = np.floor(np.cumsum(weights) / weights.sum() * settings.capacity)
    ends[-1] = settings.capacity
    return np.diff(ends.astype(np.int64), prepend=0)


def rows_to_trim(state: State, rows: Array, share: int, *, by_count: bool) -> Array:
    """Return the rows of a partition that go, in ascending order.

    Args:
        state: the table.
        rows: all rows of the partition, int64[n], more than `share`.
        share: the largest number of rows of the partition.
        by_count: whether rows that were seen least often go first; otherwise those that were
            seen least recently.
    """
    count = rows.size - (share - share // _PART)
    words = state.meta[rows, 1]
    ranks = (words >> np.uint64(32) if by_count else words).astype(np.uint32)
    bound = np.partition(ranks, count - 1)[count - 1]
    first, equal = np.flatnonzero(ranks < bound), np.flatnonzero(ranks == bound)
    more = count - first.size
    if more < equal.size:
        keys = state.meta[rows[equal], 0]
        equal = equal[np.argpartition(keys, more - 1)[:more]]
    return np.sort(rows[np.concatenate([first, equal])])
