"""Enforces the capacity of a table, which is divided among its partitions."""

from __future__ import annotations

import numpy as np

from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.tables.sparse.eviction import Candidates, evict_rows, note_new_rows
from placer.tables.sparse.state import Array
from placer.tables.sparse.storage import Storage


class Capacity:
    """Limits the number of rows of each partition.

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
        """Forget the candidates for eviction, because rows were loaded."""
        self._candidates = Candidates.none(self._shares.size)

    def note(self, storage: Storage, keys: Array, rows: Array, new: Array) -> None:
        """Note the rows of new keys; `new` is bool[n]."""
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
        """Return the number of rows to evict from each partition (int64)."""
        over: Array = np.maximum(storage.state.partitions["rows"] - self._shares, 0)
        return over

    def left(self, storage: Storage, held: range) -> int:
        """Return the number of rows that the held partitions may still get."""
        left = self._shares - storage.state.partitions["rows"]
        return int(left[held.start : held.stop].clip(0).sum())

    def evict(self, storage: Storage) -> int:
        """Evict rows above the capacity, and return their number."""
        evicted = evict_rows(
            storage.state,
            storage.kept,
            storage.bits,
            self._candidates,
            self._shares,
            self._by_count,
        )
        return int(evicted)
