"""Holds the arrays of a table, and keeps them within a memory limit."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from placer.errors import RunError
from placer.plan.settings.sparse.row_bytes import (
    ENTRY,
    GROWTH,
    MAX_LOAD,
    MIN_SLOTS,
    row_length,
)
from placer.plan.settings.sparse.table import Bloom
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.tables.sparse.admission_loops import BLOCK
from placer.tables.sparse.hashing import U64
from placer.tables.sparse.index import SlotSpace
from placer.tables.sparse.kept_rows import Kept
from placer.tables.sparse.memory import MemoryBudget
from placer.tables.sparse.row_memory import (
    chunk_nbytes,
    chunks_for,
    chunks_left,
    reserve,
)
from placer.tables.sparse.row_rule import RowRule
from placer.tables.sparse.state import CHUNK, Array, State, without_rows


class Storage:
    """The arrays of a table.

    Args:
        dtype: the dtype of values and slots.
        rule: the optimizer's rule.
        budget: the memory that the table may use.
        held: the number of partitions that the table holds.

    Attributes:
        budget: the memory that the table may use.
        state: the arrays that the compiled loops use.
        bits: the base-2 logarithm of the number of partitions.
        slots: the allocator for the slots of partitions.
        filters: the Bloom filters, uint8[partitions, counters]; empty without filters.
        latest: the latest time of the training data, in seconds.
        kept: the old versions that a save still needs.
        extra: the bytes that a save uses, without copies of rows.
        removed: the bytes of recorded removed keys.
        promised: the number of chunks that a save will use next.
    """

    def __init__(
        self,
        settings: Settings,
        dtype: np.dtype[Any],
        rule: RowRule,
        budget: MemoryBudget,
        held: int,
    ) -> None:
        self.name, self._index = settings.name, settings.index
        self.budget = budget
        self.followers: list[Followed] = []
        self.bits = U64(settings.partitions.bit_length() - 1)
        self.state = _reserve_state(settings, dtype, rule, budget.total)
        self.slots = SlotSpace(self.state, int(self.bits))
        self.filters = _filters(settings)
        # Filters of partitions on other nodes are never written and use no memory.
        self._filter_nbytes = self.filters.nbytes * held // settings.partitions
        self.latest = 0
        self.kept = Kept.none(settings.partitions)
        self.extra = 0
        self.removed = 0
        self.promised = 0
        if not self.take_memory(0):
            raise RunError(
                f"table {self.name}: it needs {self.nbytes:,} bytes even without rows, but"
                f" only {self.bytes_left:,} bytes of memory are left"
            )

    @property
    def _chunk_nbytes(self) -> int:
        """The bytes of a chunk of rows."""
        return chunk_nbytes(self.state)

    @property
    def nbytes(self) -> int:
        """The bytes that the table uses."""
        chunks = int(self.state.chunks[2])
        rows = chunks * self._chunk_nbytes
        other = self._filter_nbytes + self.extra + self.removed
        return self.slots.nbytes + rows + other

    @property
    def lasting_nbytes(self) -> int:
        """The bytes that the table uses without a save and the copies of its rows."""
        rows = int(self.state.partitions["chunks"].sum()) * self._chunk_nbytes
        return self.slots.nbytes + rows + self._filter_nbytes

    @property
    def row_nbytes(self) -> int:
        """The most bytes of a row with its index entry."""
        index = ENTRY[self._index] * GROWTH / MAX_LOAD
        return self._chunk_nbytes // CHUNK + ceil(index)

    @property
    def least_nbytes(self) -> int:
        """The bytes that the table would use with a single row."""
        return self.slots.nbytes + self._filter_nbytes + chunk_nbytes(self.state)

    @property
    def bytes_left(self) -> int:
        """The bytes that the table may still allocate."""
        return max(0, self.budget.left_for(self.name) - self.nbytes)

    def take_memory(self, chunks: int, other: int = 0) -> bool:
        """Reserve memory for more chunks and other bytes; return False if it is not enough.

        Tables that share the index need as many chunks.
        """
        if not all(each.take_memory(chunks) for each in self.followers):
            return False
        chunks += self.promised
        _, used, ever_used = map(int, self.state.chunks)
        new = max(0, used + chunks - ever_used)
        more = new * self._chunk_nbytes + other
        return chunks <= chunks_left(self.state) and self.budget.take(
            self.name, self.nbytes + more
        )

    def make_room(self, rows: Array, entries: Array) -> bool:
        """Make room for more rows and entries in each partition (int64[partitions]).

        Returns False, and changes nothing, if the memory is not enough.
        """
        chunks = chunks_for(self.state.partitions, rows)
        if not self.take_memory(chunks, self.slots.more_nbytes(entries)):
            return False
        self.slots.make_room(entries)
        # While slots grow, old and new slots exist together. Now only the new ones count.
        assert self.take_memory(chunks)
        return True


class Followed(Storage):
    """The arrays of a table that shares the index of another table.

    Rows with the same number have the same key. Keys, counts, times, scores and filters are those
    of the other table; values, slots and the numbers of the rule are its own.

    Args:
        of: the storage of the other table.
    """

    def __init__(
        self,
        settings: Settings,
        dtype: np.dtype[Any],
        rule: RowRule,
        budget: MemoryBudget,
        of: Storage,
    ) -> None:
        self.name, self._index = settings.name, settings.index
        self.budget, self.bits, self.slots, self._of = budget, of.bits, of.slots, of
        self.filters, self.followers = of.filters, []
        rows = len(of.state.meta)
        stride = row_length(rule.columns, dtype.itemsize)
        self.state = of.state._replace(
            values=reserve((rows, stride), dtype),
            scalars=reserve((rows if rule.has_scalar else 0,), dtype),
            updates=reserve((rows if rule.counts_updates else 0,), np.uint32),
        )
        self.kept = Kept.none(settings.partitions)
        self.extra = self.removed = self.promised = 0
        of.followers.append(self)

    @property
    def latest(self) -> int:  # type: ignore[override]
        """The latest time of the training data, in seconds."""
        return self._of.latest

    @property
    def _chunk_nbytes(self) -> int:
        own = self.state.values, self.state.scalars, self.state.updates
        return CHUNK * sum(int(each[0].nbytes) for each in own if each.size)

    @property
    def nbytes(self) -> int:
        """The bytes that the table uses, without the index."""
        rows = int(self.state.chunks[2]) * self._chunk_nbytes
        return rows + self.extra + self.removed

    @property
    def lasting_nbytes(self) -> int:
        """The bytes without a save and the copies of its rows."""
        return int(self.state.partitions["chunks"].sum()) * self._chunk_nbytes

    @property
    def row_nbytes(self) -> int:
        """The bytes of a row without its index entry."""
        return self._chunk_nbytes // CHUNK

    @property
    def least_nbytes(self) -> int:
        """The bytes that the table would use with a single row."""
        return self._chunk_nbytes


def _filters(settings: Settings) -> Array:
    if not isinstance(settings.admit, Bloom):
        return np.empty((0, 0), np.uint8)
    blocks = max(1, settings.admit.nbytes // settings.partitions // BLOCK)
    try:
        return np.zeros((settings.partitions, blocks * BLOCK), np.uint8)
    except MemoryError:
        raise RunError(
            f"table {settings.name}: not enough memory for its Bloom filter of"
            f" {settings.admit.nbytes:,} bytes"
        ) from None


def _reserve_state(
    settings: Settings, dtype: np.dtype[Any], rule: RowRule, nbytes: int
) -> State:
    stride = row_length(rule.columns, dtype.itemsize)
    has_times = settings.forget.unseen_seconds is not None
    has_scores = settings.score is not None
    chunks = max(nbytes // ((stride * dtype.itemsize + 16) * CHUNK), 1)
    # Compact slots and saves store the number of a row in 32 bits.
    chunks = min(chunks, (1 << 32) // CHUNK - 1)
    rows = chunks * CHUNK
    slot = ENTRY[settings.index]
    # Growing partitions abandon their old slots; the sizes form a geometric series.
    slots = 4 * max(nbytes // slot, 4 * MIN_SLOTS * settings.partitions)
    return State(
        partitions=without_rows(settings.partitions),
        slots=reserve((slots, 2) if slot == 16 else (slots,), np.uint64),
        values=reserve((rows, stride), dtype),
        meta=reserve((rows, 2), np.uint64),
        scalars=reserve((rows if rule.has_scalar else 0,), dtype),
        updates=reserve((rows if rule.counts_updates else 0,), np.uint32),
        times=reserve((rows if has_times else 0,), np.uint32),
        scores=reserve((rows if has_scores else 0,), np.float32),
        chunk_before=reserve((chunks,), np.int64),
        chunks=np.zeros(3, np.int64),
    )
