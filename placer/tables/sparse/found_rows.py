"""Keeps the rows of keys between lookup and read; some rows may be dropped in between."""

from __future__ import annotations

from typing import Any, NamedTuple

from placer.tables.machine_code import compiled
from placer.tables.sparse.hashing import mix, partition_of
from placer.tables.sparse.index import prefetch_entry, slot_of
from placer.tables.sparse.intrinsics import AHEAD
from placer.tables.sparse.slots import row_at
from placer.tables.sparse.state import Array, State


class FoundRows(NamedTuple):
    """The rows of keys at the time of a lookup.

    Attributes:
        rows: the row of each key, int64[n]; below 0 for a key without a row.
        dropped: the number of rows that each partition had dropped, int64[partitions].
    """

    rows: Array
    dropped: Array

    def copied(self) -> FoundRows:
        """Return a copy, for another table that shares the index."""
        return FoundRows(self.rows.copy(), self.dropped)


@compiled
def find_again(
    state: State, bits: Any, keys: Array, rows: Array, changed: Array
) -> None:
    """Look up keys again that had no row, or whose partition has dropped rows since.

    `changed` (bool[partitions]) marks these partitions.
    """
    for i in range(keys.size):
        if i + AHEAD < keys.size and rows[i + AHEAD] < 0:
            prefetch_entry(state, bits, keys[i + AHEAD])
        if rows[i] < 0 or changed[partition_of(mix(keys[i]), bits)]:
            rows[i] = row_at(state.slots, slot_of(state, bits, keys[i]))
