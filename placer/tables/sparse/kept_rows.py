"""Keeps old versions of rows for a save, while the table changes.

A save reads one partition after the other. Before a row of an unread partition changes for
the first time, the row is copied to a separate row for the save. Words of keys without a row
and counters of Bloom filters are small: each change is recorded, and the save undoes the
changes in its copy.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numba.extending import register_jitable

from placer.tables.machine_code import compiled
from placer.tables.sparse.hashing import U64, mix, partition_of
from placer.tables.sparse.intrinsics import AHEAD, inlined, prefetch
from placer.tables.sparse.row_memory import free_row, reserve, take_row
from placer.tables.sparse.state import CHUNK, NONE, Array, State, without_rows

RECORD_NBYTES: Final = 24
"""The bytes of a record of a changed word or counter."""


class Kept(NamedTuple):
    """The old versions that a save still needs, as arrays for compiled loops.

    If no save runs, `pending` is all 0 and the other arrays are not used. Records form a
    linked list for each partition.

    Attributes:
        pending: uint8[partitions]: 1 while the save has not read the partition.
        begun: PARTITION[partitions]: the partitions when the save began.
        is_begun: uint8[chunks]: 1 for chunks that were in use when the save began.
        copy_of: uint32[rows]: the number of the row's copy plus 1; 0 without a copy.
        copies: PARTITION[1]: a separate partition that holds the copies.
        words: uint64[n, 2]: records of changes: the key and the old word of an entry, or
            the position and the old value of a filter's counter.
        word_before: int64[n]: the previous record in the same list.
        last_word: int64[partitions]: the last record of a word, or NONE. Empty if the table
            has no entries for keys without a row.
        last_counter: int64[partitions]: the last record of a counter, or NONE. Empty if the
            table has no Bloom filters.
        free_words: int64[3]: the first free record, the number of records ever used, and
            the number of records in use.
    """

    pending: Array
    begun: Array
    is_begun: Array
    copy_of: Array
    copies: Array
    words: Array
    word_before: Array
    last_word: Array
    last_counter: Array
    free_words: Array

    @classmethod
    def none(cls, partitions: int) -> Kept:
        """Return the value for the time when no save runs."""
        return cls(
            pending=np.zeros(partitions, np.uint8),
            begun=without_rows(partitions),
            is_begun=np.zeros(0, np.uint8),
            copy_of=np.zeros(0, np.uint32),
            copies=without_rows(1),
            words=np.zeros((0, 2), np.uint64),
            word_before=np.zeros(0, np.int64),
            last_word=np.zeros(0, np.int64),
            last_counter=np.zeros(0, np.int64),
            free_words=np.array([NONE, 0, 0], np.int64),
        )

    @classmethod
    def begin(cls, state: State, records: int, *, words: bool, counters: bool) -> Kept:
        """Return the value for the beginning of a save, without copies and records.

        Args:
            state: the arrays of the table.
            records: the largest number of records.
            words: whether to record words of entries.
            counters: whether to record counters of filters.
        """
        partitions = state.partitions.size
        is_begun = np.zeros(state.chunk_before.size, np.uint8)
        _mark_chunks(state.partitions, state.chunk_before, is_begun)
        return cls.none(partitions)._replace(
            pending=np.ones(partitions, np.uint8),
            begun=state.partitions.copy(),
            is_begun=is_begun,
            copy_of=reserve((len(state.meta),), np.uint32),
            words=reserve((records, 2), np.uint64),
            word_before=reserve((records,), np.int64),
            last_word=np.full(words * partitions, NONE, np.int64),
            last_counter=np.full(counters * partitions, NONE, np.int64),
        )


@compiled
def _mark_chunks(partitions: Array, chunk_before: Array, is_begun: Array) -> None:
    for partition in range(partitions.size):
        chunk = partitions[partition].chunk
        while chunk != NONE:
            is_begun[chunk] = 1
            chunk = chunk_before[chunk]


@register_jitable
def _needs_copy(kept: Kept, partition: Any, row: Any) -> Any:
    """Whether a save must still read a row and has no copy of it.

    Rows that were free when the save began also need a copy, which marks them as free.
    """
    if kept.pending[partition] == 0 or kept.is_begun[row // CHUNK] == 0:
        return False
    own = kept.begun[partition]
    if own.next <= row < (own.chunk + 1) * CHUNK:
        return False
    return kept.copy_of[row] == 0


@register_jitable
def _copy_element(array: Array, row: Any, to: Any) -> None:
    if array.size:
        array[to] = array[row]


@inlined
def _copy_row(state: State, row: Any, to: Any) -> None:
    for j in range(state.values.shape[1]):
        state.values[to, j] = state.values[row, j]
    state.meta[to, 0] = state.meta[row, 0]
    state.meta[to, 1] = state.meta[row, 1]
    _copy_element(state.scalars, row, to)
    _copy_element(state.updates, row, to)
    _copy_element(state.times, row, to)
    _copy_element(state.scores, row, to)


@inlined
def keep_row(state: State, kept: Kept, partition: Any, row: Any) -> None:
    """Copy a row before it changes, if a save needs it. Room for the copy must exist."""
    if _needs_copy(kept, partition, row):
        to = take_row(state, kept.copies[0])
        _copy_row(state, row, to)
        kept.copy_of[row] = np.uint32(to + 1)


@inlined
def keep_word(kept: Kept, partition: Any, key: Any, word: Any) -> None:
    """Record the word of a key before it changes, if a save needs it. Room must exist."""
    if kept.last_word.size and kept.pending[partition]:
        _record(kept, kept.last_word, partition, key, word)


@inlined
def keep_counter(kept: Kept, partition: Any, position: Any, counter: Any) -> None:
    """Record a counter of a filter before it changes, if a save needs it. Room must exist."""
    if kept.last_counter.size and kept.pending[partition]:
        _record(kept, kept.last_counter, partition, U64(position), U64(counter))


@inlined
def _record(kept: Kept, last: Array, partition: Any, key: Any, word: Any) -> None:
    at = kept.free_words[0]
    if at != NONE:
        kept.free_words[0] = kept.word_before[at]
    else:
        at = kept.free_words[1]
        kept.free_words[1] = at + 1
    kept.free_words[2] += 1
    kept.words[at, 0] = key
    kept.words[at, 1] = word
    kept.word_before[at] = last[partition]
    last[partition] = at


@compiled
def rows_to_keep(kept: Kept, bits: Any, keys: Array, rows: Array, found: Array) -> Any:
    """Write the rows that must be copied to `found` (int64[n]), and return their number.

    `rows` contains the rows of `keys`; values below 0 mean no row.
    """
    base = U64(kept.copy_of.ctypes.data)
    count = 0
    for i in range(keys.size):
        if i + AHEAD < keys.size and rows[i + AHEAD] >= 0:
            prefetch(base + U64(4) * U64(rows[i + AHEAD]))
        row = rows[i]
        if row >= 0 and _needs_copy(kept, partition_of(mix(keys[i]), bits), row):
            found[count] = row
            count += 1
    return count


@compiled
def keep_rows(state: State, kept: Kept, rows: Array) -> None:
    """Copy the rows that `rows_to_keep` has found. Room for the copies must exist."""
    own = kept.copies[0]
    for i in range(rows.size):
        kept.copy_of[rows[i]] = np.uint32(take_row(state, own) + 1)
    values, meta = U64(state.values.ctypes.data), U64(state.meta.ctypes.data)
    nbytes = U64(state.values.shape[1] * state.values.itemsize)
    for i in range(rows.size):
        if i + AHEAD < rows.size:
            ahead = U64(rows[i + AHEAD])
            prefetch(meta + U64(16) * ahead)
            for at in range(0, nbytes, 64):
                prefetch(values + nbytes * ahead + U64(at))
        _copy_row(state, rows[i], np.int64(kept.copy_of[rows[i]]) - 1)


@compiled
def keep_words(kept: Kept, bits: Any, keys: Array, words: Array) -> None:
    """Record the words of keys before they change. Room for the records must exist."""
    for i in range(keys.size):
        keep_word(kept, partition_of(mix(keys[i]), bits), keys[i], words[i])


@compiled
def free_copies(state: State, kept: Kept, rows: Array) -> None:
    """Free the copies of rows, if they have copies."""
    for i in range(rows.size):
        copy = kept.copy_of[rows[i]]
        if copy:
            free_row(state, kept.copies[0], np.int64(copy) - 1)
            kept.copy_of[rows[i]] = 0


@compiled
def free_words(kept: Kept, partition: Any) -> None:
    """Free the records of a partition."""
    for last in (kept.last_word, kept.last_counter):
        if last.size:
            at = last[partition]
            last[partition] = NONE
            while at != NONE:
                before = kept.word_before[at]
                kept.word_before[at] = kept.free_words[0]
                kept.free_words[0] = at
                kept.free_words[2] -= 1
                at = before
