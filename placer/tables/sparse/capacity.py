"""The capacity of a table: each partition has its share of it."""

from __future__ import annotations

import numpy as np

from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.tables.sparse.eviction import Candidates, evict_rows, note_new_rows
from placer.tables.sparse.state import Array
from placer.tables.sparse.storage import Storage


class Capacity:
    """The most rows of each partition, and which of them make room for others.

    Args:
        settings: the settings of a table with a capacity.
    """

    def __init__(self, settings: Settings) -> None:
        assert settings.capacity is not None
        self._by_count = settings.evict == "lfu"
        ends = np.arange(settings.partitions + 1) * settings.capacity
        self._shares = np.diff(ends // settings.partitions)
        self.forget_candidates()

    def forget_candidates(self) -> None:
        """Look at all rows again when rows have to go: for rows that were loaded."""
        self._candidates = Candidates.none(self._shares.size)

    def note(self, storage: Storage, keys: Array, rows: Array, new: Array) -> None:
        """Note the rows of new keys (bool, of shape [n])."""
        note_new_rows(
            storage.state,
            storage.bits,
            self._candidates,
            keys,
            rows,
            new,
            self._by_count,
        )

    def over(self, storage: Storage) -> Array:
        """Return how many rows of each partition have to go (int64)."""
        over: Array = np.maximum(storage.state.partitions["rows"] - self._shares, 0)
        return over

    def evict(self, storage: Storage) -> int:
        """Drop these rows, and return their number."""
        evicted = evict_rows(
            storage.state,
            storage.kept,
            storage.bits,
            self._candidates,
            self._shares,
            self._by_count,
        )
        return int(evicted)
