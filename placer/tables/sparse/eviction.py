"""Chooses the rows to evict from a partition that is above its share of the capacity.

Rows that were seen least recently, or least often, are evicted first; of equal rows, the row
with the smallest key. To avoid a search through all rows, each partition keeps a list of the
first CANDIDATES rows in this order. The last candidate is the bound: every row before it is
in the list. The rank of a candidate may be outdated but is never too high, because ranks only
grow. When the list is empty, all rows of the partition are searched again.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba.extending import register_jitable

from placer.tables.machine_code import compiled
from placer.tables.sparse.hashing import U64, mix, partition_of
from placer.tables.sparse.index import delete_entry, slot_of
from placer.tables.sparse.kept_rows import Kept, keep_row
from placer.tables.sparse.row_memory import free_row
from placer.tables.sparse.slots import row_at
from placer.tables.sparse.state import CHUNK, NONE, Array, State

CANDIDATES: Final = 256


class Candidates(NamedTuple):
    """The candidates for eviction of all partitions.

    Attributes:
        ranks: uint64[partitions, CANDIDATES, 2]: the rank and the key of each candidate, in
            ascending order. The rank is the step of the last occurrence, or the count.
        first: int64[partitions]: the position of the first candidate.
        stop: int64[partitions]: the position after the last candidate.
        bounds: uint64[partitions, 2]: a rank and a key. All rows before this bound are
            candidates.
    """

    ranks: Array
    first: Array
    stop: Array
    bounds: Array

    @classmethod
    def none(cls, partitions: int) -> Candidates:
        """Return empty lists of candidates, with bounds before all rows."""
        return cls(
            np.zeros((partitions, CANDIDATES, 2), np.uint64),
            np.zeros(partitions, np.int64),
            np.zeros(partitions, np.int64),
            np.zeros((partitions, 2), np.uint64),
        )


@register_jitable
def _is_before(rank: Any, key: Any, other_rank: Any, other_key: Any) -> Any:
    return rank < other_rank or (rank == other_rank and key < other_key)


@register_jitable
def _rank_of(state: State, row: Any, by_count: bool) -> Any:
    word = state.meta[row, 1]
    return word >> U64(32) if by_count else word & U64(0xFFFFFFFF)


@register_jitable
def _insert(candidates: Candidates, partition: Any, rank: Any, key: Any) -> None:
    """Insert a row in order. If the list is full, drop the last row and lower the bound."""
    ranks = candidates.ranks[partition]
    first, stop = candidates.first[partition], candidates.stop[partition]
    if stop == CANDIDATES and first > 0:
        for at in range(first, stop):
            ranks[at - first, 0] = ranks[at, 0]
            ranks[at - first, 1] = ranks[at, 1]
        first, stop = 0, stop - first
    if stop == CANDIDATES:
        stop -= 1
        candidates.bounds[partition, 0] = ranks[stop, 0]
        candidates.bounds[partition, 1] = ranks[stop, 1]
        if not _is_before(rank, key, ranks[stop, 0], ranks[stop, 1]):
            candidates.bounds[partition, 0] = rank
            candidates.bounds[partition, 1] = key
            rank, key = ranks[stop, 0], ranks[stop, 1]
    at = stop
    while at > first and _is_before(rank, key, ranks[at - 1, 0], ranks[at - 1, 1]):
        ranks[at, 0] = ranks[at - 1, 0]
        ranks[at, 1] = ranks[at - 1, 1]
        at -= 1
    ranks[at, 0] = rank
    ranks[at, 1] = key
    candidates.first[partition] = first
    candidates.stop[partition] = stop + 1


@register_jitable
def _look_at_all(
    state: State, candidates: Candidates, partition: Any, by_count: bool
) -> None:
    candidates.first[partition] = candidates.stop[partition] = 0
    candidates.bounds[partition, 0] = candidates.bounds[partition, 1] = ~U64(0)
    chunk = state.partitions[partition].chunk
    while chunk != NONE:
        for row in range(chunk * CHUNK, (chunk + 1) * CHUNK):
            if state.meta[row, 1] != U64(0):
                rank, key = _rank_of(state, row, by_count), state.meta[row, 0]
                bound = candidates.bounds[partition]
                if _is_before(rank, key, bound[0], bound[1]):
                    _insert(candidates, partition, rank, key)
        chunk = state.chunk_before[chunk]


@compiled
def note_new_rows(
    state: State,
    bits: Any,
    candidates: Candidates,
    keys: Array,
    rows: Array,
    new: Array,
    by_count: Any,
) -> None:
    """Add new rows (`new`, bool[n]) that come before the bound to the candidates."""
    for i in range(keys.size):
        if new[i]:
            partition = partition_of(mix(keys[i]), bits)
            rank = _rank_of(state, rows[i], by_count)
            bound = candidates.bounds[partition]
            if _is_before(rank, keys[i], bound[0], bound[1]):
                _insert(candidates, partition, rank, keys[i])


@compiled
def evict_rows(
    state: State,
    kept: Kept,
    bits: Any,
    candidates: Candidates,
    shares: Array,
    by_count: Any,
) -> Any:
    """Evict rows until no partition exceeds its share, and return the number of rows.

    `shares` is int64[partitions].
    """
    evicted = 0
    for partition in range(shares.size):
        while state.partitions[partition].rows > shares[partition]:
            first = candidates.first[partition]
            if first == candidates.stop[partition]:
                _look_at_all(state, candidates, partition, by_count)
                continue
            rank, key = candidates.ranks[partition, first]
            candidates.first[partition] = first + 1
            row = row_at(state.slots, slot_of(state, bits, key))
            if row < 0:
                continue  # the row was already forgotten
            now = _rank_of(state, row, by_count)
            if now == rank:
                keep_row(state, kept, partition, row)
                delete_entry(state, bits, key)
                free_row(state, state.partitions[partition], row)
                evicted += 1
            else:
                bound = candidates.bounds[partition]
                if _is_before(now, key, bound[0], bound[1]):
                    _insert(candidates, partition, now, key)
    return evicted
