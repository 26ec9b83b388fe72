"""Saves a table while it changes.

Two threads use a save. The table's thread keeps old versions of rows before it changes them.
The reader's thread reads partitions as they were when the save began.

The reader first copies the rows of a partition without a lock, so some rows may change during
the copy. Then it takes the lock and marks the partition as read. Finally it replaces rows with
the kept old versions. The table's thread keeps old versions while it holds the lock, and
changes the rows afterwards. There are two cases:

- The table's thread took the lock first. The reader then finds the kept version and uses it.
- The reader took the lock first. It had then read the row before the change.

The index and Bloom filters are different: they change only while the lock is held, and they
are copied while the lock is held. The reader undoes the recorded changes in its copy. After a
partition was read, changes to it need no copies and records.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from placer.errors import RunError
from placer.tables.machine_code import compiled
from placer.tables.sparse.index import delete_entry, read_words, slot_of
from placer.tables.sparse.kept_rows import (
    RECORD_NBYTES,
    Kept,
    free_copies,
    free_words,
    keep_rows,
    keep_words,
    rows_to_keep,
)
from placer.tables.sparse.partition_arrays import (
    RowArrays,
    choose_rows,
    copy_values,
    entries_of,
    is_chosen,
    put_copies,
    read_rows,
    row_room,
    rows_of_partition,
    saved_arrays,
    saved_layout,
)
from placer.tables.sparse.row_memory import chunk_nbytes, chunks_for, give_chunks
from placer.tables.sparse.state import CHUNK, NONE, Array, State
from placer.tables.sparse.storage import Storage

PATIENCE: Final = 60.0
"""Seconds that a change of the table waits for the reader of a save."""


class TableSave:
    """The partitions of a table as they were when the save began, as a context manager.

    `SparseTable.begin_save` creates it. The reader's thread calls `layout`, `partition`,
    `partitions` and `close`. The table calls the other methods.

    Kept versions use a limited amount of memory. At the limit, the next change of the table
    waits until the reader has read more partitions. If it reads no partition for `patience`
    seconds, the save is given up: the reader's next call raises RunError, and the table
    continues. The same happens if the table needs the memory for rows.

    Args:
        held: the partitions to save.
        memory: bytes that the save may use.
        has_words: whether the index can contain entries of keys without a row.
        dim: the number of values of a row, to save only keys and values; None for all arrays.
        since: only rows that were seen in this step or later are saved; None for all.
        ended: called when the save is closed.
        lock: the lock of all saves of an index. A change waits for the reader of one save, who may be
            reading another one.
        patience: seconds that a change of the table waits for the reader.

    Attributes:
        waited: seconds that the table has waited for the reader.

    Raises:
        RunError: if the memory of the table is not enough.
    """

    def __init__(
        self,
        storage: Storage,
        held: range,
        memory: int,
        *,
        has_words: bool,
        dim: int | None,
        since: int | None,
        ended: Callable[[], None],
        lock: threading.RLock,
        patience: float = PATIENCE,
    ) -> None:
        self._storage, self._held, self._ended = storage, held, ended
        self._has_words, self._patience = has_words, patience
        self._dim, self._since = dim, since
        has_counters = bool(storage.filters.size) and dim is None
        self._changed = threading.Condition(lock)
        self._problem = ""
        self._reads = 0
        self.waited = 0.0
        state = storage.state
        self._begun, self._latest = state.partitions.copy(), storage.latest
        most = max((row_room(self._begun[p]) for p in held), default=0)
        self._buffers = RowArrays.room_for(state, most if dim is None else 0)
        self._chosen = np.empty(0 if dim is None else most, np.int64)
        extra = 4 * CHUNK * int(state.chunks[2]) + self._chosen.nbytes
        extra += sum(array.nbytes for array in self._buffers)
        # A key without a row changes one entry, or four counters of a filter.
        self._words_of_key = has_words + 4 * has_counters
        self._most_words = 0
        if self._words_of_key:
            self._most_words = max(0, memory - extra) // 4 // RECORD_NBYTES
        extra += self._most_words * RECORD_NBYTES
        self._most_chunks = max(0, memory - extra) // chunk_nbytes(state)
        if not storage.take_memory(0, extra):
            raise RunError(
                f"table {storage.name}: a save needs {extra:,} bytes, but only"
                f" {storage.bytes_left:,} bytes of memory are left",
                hint="give the table's servers more memory, or set a lower capacity",
            )
        storage.extra = extra
        storage.kept = Kept.begin(
            state,
            self._most_words,
            words=has_words,
            counters=has_counters,
        )
        storage.kept.pending[:] = [p in held for p in range(self._begun.size)]

    def __enter__(self) -> TableSave:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Methods for the reader's thread.

    def layout(self, partition: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the dtype and the shape of each array that `partition` will return. All rows
        and arrays must be saved."""
        assert self._dim is None
        own, storage = self._begun[partition], self._storage
        rows = int(own["rows"])
        entries = int(own["entries"]) - rows if self._has_words else 0
        return saved_layout(storage.state, storage.filters, rows, entries)

    def partitions(self) -> Iterator[tuple[int, dict[str, Array]]]:
        """Yield the number and the arrays of each unread partition; see `partition`."""
        for partition in self._held:
            self._check()
            if self._storage.kept.pending[partition]:
                yield partition, self.partition(partition)

    def partition(self, partition: int) -> dict[str, Array]:
        """Return the arrays of a partition as it was when the save began.

        Each partition can be read only once. The arrays are those of
        `SparseTable.save_partition`, and are valid until the next partition is read. With a
        `dim` they are `keys` and `values`, without slots.

        Raises RunError if the save was given up or closed, or the partition was already read.
        """
        if self._dim is not None:
            return self._values_of(partition, self._dim)
        storage, own = self._storage, self._begun[partition : partition + 1]
        state, kept, filters = storage.state, storage.kept, storage.filters
        self._check_unread(partition)
        read_rows(state, own, self._buffers)
        with self._changed:
            self._check_unread(partition)
            kept.pending[partition] = 0
            index = _index_of(state, partition) if self._has_words else None
            counters = filters[partition].copy() if filters.size else None
        used = row_room(own[0])
        rows = int(put_copies(state, kept.copy_of, used, self._buffers))
        assert rows == own[0]["rows"], (rows, own)
        saved = saved_arrays(state, self._buffers, rows, self._latest)
        saved["entry_keys"] = saved["entry_words"] = np.empty(0, np.uint64)
        if index is not None:
            _undo_words(index, storage.bits, partition, kept)
            saved["entry_keys"], saved["entry_words"] = entries_of(index.slots)
        if counters is not None:
            _undo_counters(counters, partition, kept)
            saved["filter"] = counters
        with self._changed:
            free_copies(state, kept, self._buffers.rows[:used])
            free_words(kept, partition)
            self._reads += 1
            self._changed.notify_all()
        return saved

    def _values_of(self, partition: int, dim: int) -> dict[str, Array]:
        """Return the keys and values of the chosen rows of a partition.

        Rows are chosen without the lock. A chosen row without a copy has not changed before the
        partition was marked as read, and a row with a copy is chosen by its copy.
        """
        storage, own = self._storage, self._begun[partition : partition + 1]
        state, kept, room = storage.state, storage.kept, self._chosen
        self._check_unread(partition)
        since = np.uint32((self._since or 0) & 0xFFFFFFFF)
        all_rows = self._since is None
        count = choose_rows(state, own, since, all_rows, room)
        rows = room[:count]
        keys, values = state.meta[rows, 0], copy_values(state, rows, dim)
        with self._changed:
            self._check_unread(partition)
            kept.pending[partition] = 0
            has_copies = bool(kept.copies["rows"][0])
        if has_copies:
            used = row_room(own[0])
            chosen = kept.copy_of[rows] == 0
            numbers = np.empty(used, np.int64)
            rows_of_partition(state, own, numbers)
            with_copy = numbers[kept.copy_of[numbers] != 0]
            copies = kept.copy_of[with_copy].astype(np.int64) - 1
            copies = copies[is_chosen(state.meta[copies, 1], since, all_rows)]
            keys = np.concatenate([keys[chosen], state.meta[copies, 0]])
            values = np.concatenate([values[chosen], copy_values(state, copies, dim)])
            with self._changed:
                free_copies(state, kept, with_copy)
        with self._changed:
            self._reads += 1
            self._changed.notify_all()
        return {"keys": keys, "values": values}

    def close(self) -> None:
        """End the save and free its memory, even if some partitions were not read."""
        storage = self._storage
        with self._changed:
            if self._problem == _CLOSED:
                return
            self._problem = _CLOSED
            copies = storage.kept.copies
            storage.kept = Kept.none(self._begun.size)
            _clear_rows(storage.state, copies)
            give_chunks(storage.state, copies)
            storage.extra = 0
            storage.take_memory(0)
            self._ended()
            self._changed.notify_all()

    def _check(self) -> None:
        if self._problem:
            raise RunError(f"table {self._storage.name}: {self._problem}")

    def _check_unread(self, partition: int) -> None:
        self._check()
        if not self._storage.kept.pending[partition]:
            raise RunError(
                f"table {self._storage.name}: partition {partition} was already read, or"
                " the table does not hold it"
            )

    # Methods for the table's thread.

    @contextmanager
    def keeping(self, keys: Array, rows: Array) -> Iterator[None]:
        """Return a context manager that keeps the rows of keys and holds the lock.

        In the body, keys without a row (row below 0) may be given a row or be counted. The
        rows of the other keys may change only after the body.
        """
        storage, found = self._storage, np.empty(keys.size, np.int64)
        count = 0
        without_row = int(np.count_nonzero(rows < 0))
        words = without_row * self._words_of_key

        def needed(pending: Array) -> tuple[int, int]:
            nonlocal count
            count = int(rows_to_keep(storage.kept, storage.bits, keys, rows, found))
            return count + without_row, words

        with self._locked():
            self._wait_for_room(needed)
            keep_rows(storage.state, storage.kept, found[:count])
            try:
                if storage.kept.pending.any():
                    storage.promised = self._chunks_for(without_row)
                yield
            finally:
                storage.promised = 0

    def keep(self, keys: Array, rows: Array) -> None:
        """Keep rows of keys before they change. The lock must be held and room must exist."""
        storage, found = self._storage, np.empty(keys.size, np.int64)
        count = rows_to_keep(storage.kept, storage.bits, keys, rows, found)
        keep_rows(storage.state, storage.kept, found[:count])

    def keep_entries(self, partition: int) -> None:
        """Keep the words of all keys without a row of a partition, which may change."""
        storage = self._storage
        if self._has_words and storage.kept.pending[partition]:
            own = storage.state.partitions[partition]
            start = int(own["start"])
            slots = storage.state.slots[start : start + int(own["capacity"])]
            keys, words = entries_of(slots)
            keep_words(storage.kept, storage.bits, keys, words)

    def keep_new(self, keys: Array, rows: Array, new: Array, words: Array) -> None:
        """Keep rows and words before they change, in the body of `keeping`.

        Rows of new keys (`new`, bool[n]) may have belonged to other keys when the save began. The
        words of new keys and of keys with a new word are kept as well.
        """
        storage, kept, bits = self._storage, self._storage.kept, self._storage.bits
        self.keep(keys[new], rows[new])
        if self._has_words:
            changing = keys[new | (words != 0)]
            before = np.empty_like(changing)
            read_words(storage.state, bits, changing, before)
            keep_words(kept, bits, changing, before)

    @contextmanager
    def changing(self, needed: Callable[[Array], tuple[int, int]]) -> Iterator[None]:
        """Return a context manager that holds the lock; the body may change the table.

        `needed` returns how many rows and words may change in the partitions that the save has not
        read. Its argument (uint8[partitions]) marks these partitions.
        """
        with self._locked():
            self._wait_for_room(needed)
            yield

    @contextmanager
    def _locked(self) -> Iterator[None]:
        begin = time.perf_counter()
        with self._changed:
            self.waited += time.perf_counter() - begin
            yield

    def wait_for_end(self) -> None:
        """Wait for the reader to close the save.

        After `patience` seconds, give the save up, and wait for the same time again.
        """
        with self._changed:
            if not self._wait(self._is_closed):
                self._give_up("the table needs the memory that the save uses")
                self._wait(self._is_closed)

    def _is_closed(self) -> bool:
        return self._problem == _CLOSED

    def _wait_for_room(self, needed: Callable[[Array], tuple[int, int]]) -> None:
        """Wait for room for the needed rows and words; give up if no partition is read."""
        while True:
            pending = self._storage.kept.pending
            rows, words = needed(pending)
            if not pending.any() or self._has_room(rows, words):
                return
            if not self._wait_for_read():
                self._give_up(
                    "the reader is too slow: the table has waited for"
                    f" {self._patience:g} seconds"
                )

    def _give_up(self, why: str) -> None:
        self._storage.kept.pending[:] = 0
        self._problem = f"the save was given up, because {why}"

    def _wait_for_read(self) -> bool:
        """Wait until another partition is read or the save ends; return False on timeout."""
        before = self._reads
        return self._wait(lambda: self._reads != before or bool(self._problem))

    def _wait(self, until: Callable[[], bool]) -> bool:
        begin = time.perf_counter()
        try:
            return self._changed.wait_for(until, self._patience)
        finally:
            self.waited += time.perf_counter() - begin

    def _has_room(self, rows: int, words: int) -> bool:
        kept = self._storage.kept
        if self._words_of_key and kept.free_words[2] + words > self._most_words:
            return False
        chunks = self._chunks_for(rows)
        if kept.copies["chunks"][0] + chunks > self._most_chunks:
            return False
        return self._storage.take_memory(chunks)

    def _chunks_for(self, rows: int) -> int:
        return chunks_for(self._storage.kept.copies, np.array([rows]))


_CLOSED: Final = "the save is closed"


def _index_of(state: State, partition: int) -> State:
    partitions = state.partitions.copy()
    start, capacity = (
        int(partitions[partition][name]) for name in ("start", "capacity")
    )
    partitions["start"][partition] = 0
    slots = state.slots[start : start + capacity].copy()
    return state._replace(partitions=partitions, slots=slots)


@compiled
def _undo_words(index: State, bits: Any, partition: Any, kept: Kept) -> None:
    at = kept.last_word[partition]
    while at != NONE:
        key, word = kept.words[at]
        slot = slot_of(index, bits, key)
        if word:
            index.slots[slot, 0] = key
            index.slots[slot, 1] = word
        elif index.slots[slot, 1]:
            delete_entry(index, bits, key)
        at = kept.word_before[at]


@compiled
def _undo_counters(counters: Array, partition: Any, kept: Kept) -> None:
    at = kept.last_counter[partition]
    while at != NONE:
        position, counter = kept.words[at]
        counters[position] = counter
        at = kept.word_before[at]


def _clear_rows(state: State, own: Array) -> None:
    chunk = int(own["chunk"][0])
    while chunk != NONE:
        state.meta[chunk * CHUNK : (chunk + 1) * CHUNK] = 0
        chunk = int(state.chunk_before[chunk])
    own["rows"] = 0
