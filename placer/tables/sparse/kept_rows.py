"""What a save keeps of a table that changes before the save has read all of it.

A save reads one partition after the other. Before a row of a partition that it has yet to
read changes for the first time, the row is copied to a row of the save's own. The words of
keys without a row and the counters of Bloom filters are small: each change is recorded,
and undone in what the save reads.
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
"""The bytes of a record of a word."""


class Kept(NamedTuple):
    """What a save keeps, as arrays that the loops work on.

    `pending`, uint8 of shape [partitions], says which partitions are yet to be read: all 0
    if no save runs, and then the other arrays are not used. `begun` has the partitions as
    they were when the save began, and `is_begun`, uint8 of shape [chunks], says which
    chunks they had then. `copy_of`, uint32 of shape [rows], is the number of the copy of
    each row plus 1, or 0; copies are rows of `copies`, a partition of their own.
    `words`, uint64 of shape [n, 2], are records: keys and former words of entries, and
    positions and former counters of filters. Those of a partition are two lists, whose
    last ones `last_word` and `last_counter` have, int64 of shape [partitions], or empty
    where a table has neither; `word_before` leads to the ones before. `free_words`, int64
    of shape [3], has the first of a list of free records, the number of those that were
    ever used, and of those that are in use.
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
        """Return what is kept while no save runs."""
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
        """Return what is kept of a table from now on: nothing yet.

        Args:
            state: the table.
            records: how many words of entries and counters may be kept.
            words: whether those of entries are.
            counters: whether those of filters are.
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
    """Whether a save has yet to read a row that was there when it began, and that has no
    copy. Rows that were free then count: their copy says so."""
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
    """Copy a row that is about to change, if a save needs it. There is room for a copy."""
    if _needs_copy(kept, partition, row):
        to = take_row(state, kept.copies[0])
        _copy_row(state, row, to)
        kept.copy_of[row] = np.uint32(to + 1)


@inlined
def keep_word(kept: Kept, partition: Any, key: Any, word: Any) -> None:
    """Record the word of a key that is about to change, if a save needs it. There is room
    for the record."""
    if kept.last_word.size and kept.pending[partition]:
        _record(kept, kept.last_word, partition, key, word)


@inlined
def keep_counter(kept: Kept, partition: Any, position: Any, counter: Any) -> None:
    """As `keep_word`, for a counter of a filter."""
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
    """Write those of the rows of keys that are to be copied to `found` (int64, of shape
    [n]), and return their number; rows below 0 are none."""
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
    """Copy rows that `rows_to_keep` found. There is room for the copies."""
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
    """Record the words of keys that are about to change. There is room for the records."""
    for i in range(keys.size):
        keep_word(kept, partition_of(mix(keys[i]), bits), keys[i], words[i])


@compiled
def free_copies(state: State, kept: Kept, rows: Array) -> None:
    """Give the copies of rows back, those of the rows that have one."""
    for i in range(rows.size):
        copy = kept.copy_of[rows[i]]
        if copy:
            free_row(state, kept.copies[0], np.int64(copy) - 1)
            kept.copy_of[rows[i]] = 0


@compiled
def free_words(kept: Kept, partition: Any) -> None:
    """Give the records of a partition back."""
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
