"""Reads the arrays of a partition from a table, in the form in which they are saved.

Rows are in the order of their chunks, which is the order in which they were first used.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from placer.tables.machine_code import compiled
from placer.tables.sparse.hashing import U64
from placer.tables.sparse.state import CHUNK, NONE, Array, State

OPTIONAL = ("scalars", "updates", "times", "scores")
"""The names of arrays that only some tables have."""


class RowArrays(NamedTuple):
    """Buffers for rows of a table; each array has one element or one row per row.

    `rows` (int64) contains the numbers of the rows in the table. `keys` and `words` (uint64)
    are the two columns of `meta` in `State`. The other arrays are as in `State`.
    """

    rows: Array
    keys: Array
    words: Array
    values: Array
    scalars: Array
    updates: Array
    times: Array
    scores: Array

    @classmethod
    def room_for(cls, state: State, rows: int) -> RowArrays:
        """Return buffers for a number of rows of a table."""
        by_name = {
            name: np.empty((rows if array.size else 0, *array.shape[1:]), array.dtype)
            for name in ("values", *OPTIONAL)
            for array in [getattr(state, name)]
        }
        return cls(
            rows=np.empty(rows, np.int64),
            keys=np.empty(rows, np.uint64),
            words=np.empty(rows, np.uint64),
            **by_name,
        )


def saved_arrays(
    state: State, room: RowArrays, count: int, latest: int
) -> dict[str, Array]:
    """Return the saved arrays of the first `count` rows in the buffers.

    All arrays are views, except `seen`, `count` and `latest`. `latest` is the latest time of
    the training data, for tables with times.
    """
    words = room.words[:count]
    saved = {
        "keys": room.keys[:count],
        "values": room.values[:count],
        "seen": words.astype(np.uint32),
        "count": (words >> U64(32)).astype(np.uint32),
    }
    for name in OPTIONAL:
        if getattr(state, name).size:
            saved[name] = getattr(room, name)[:count]
    if state.times.size:
        saved["latest"] = np.array([latest], np.int64)
    return saved


def saved_layout(
    state: State, filters: Array, rows: int, entries: int
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the dtype and shape of each saved array of a partition.

    `entries` is the number of entries of keys without a row.
    """
    layout = {
        "keys": ("uint64", (rows,)),
        "values": (str(state.values.dtype), (rows, state.values.shape[1])),
        "seen": ("uint32", (rows,)),
        "count": ("uint32", (rows,)),
    }
    for name in OPTIONAL:
        array: Array = getattr(state, name)
        if array.size:
            layout[name] = (str(array.dtype), (rows,))
    if state.times.size:
        layout["latest"] = ("int64", (1,))
    layout["entry_keys"] = layout["entry_words"] = ("uint64", (entries,))
    if filters.size:
        layout["filter"] = ("uint8", filters.shape[1:])
    return layout


def row_room(own: Any) -> int:
    """Return the number of rows that a partition (dtype PARTITION) has ever used."""
    before = int(own["chunks"]) - 1
    return int(own["next"]) + (before - int(own["chunk"])) * CHUNK


@compiled
def read_rows(state: State, own: Array, out: RowArrays) -> None:
    """Copy all rows that a partition has ever used, including free rows.

    `own` (PARTITION[1]) is the partition at the beginning of the save. Rows that change
    during the copy may be copied partly.
    """
    partition = own[0]
    chunk, stop = partition.chunk, partition.next
    end = stop - chunk * CHUNK + (partition.chunks - 1) * CHUNK
    while chunk != NONE:
        first = chunk * CHUNK
        at = end - (stop - first)
        end = at
        for row in range(first, stop):
            out.rows[at] = row
            out.keys[at] = state.meta[row, 0]
            out.words[at] = state.meta[row, 1]
            for j in range(state.values.shape[1]):
                out.values[at, j] = state.values[row, j]
            if state.scalars.size:
                out.scalars[at] = state.scalars[row]
            if state.updates.size:
                out.updates[at] = state.updates[row]
            if state.times.size:
                out.times[at] = state.times[row]
            if state.scores.size:
                out.scores[at] = state.scores[row]
            at += 1
        chunk = state.chunk_before[chunk]
        stop = (chunk + 1) * CHUNK


@compiled
def put_copies(state: State, copy_of: Array, count: Any, out: RowArrays) -> Any:
    """Replace rows with their kept copies, and remove free rows.

    `copy_of` is the array of `Kept`. `out.rows` does not change. Returns the number of
    remaining rows.
    """
    kept = 0
    for i in range(count):
        copy = np.int64(copy_of[out.rows[i]]) - 1 if copy_of.size else NONE
        if copy >= 0:
            if state.meta[copy, 1] != U64(0):
                out.keys[kept] = state.meta[copy, 0]
                out.words[kept] = state.meta[copy, 1]
                for j in range(state.values.shape[1]):
                    out.values[kept, j] = state.values[copy, j]
                if state.scalars.size:
                    out.scalars[kept] = state.scalars[copy]
                if state.updates.size:
                    out.updates[kept] = state.updates[copy]
                if state.times.size:
                    out.times[kept] = state.times[copy]
                if state.scores.size:
                    out.scores[kept] = state.scores[copy]
                kept += 1
        elif out.words[i] != U64(0):
            if kept < i:
                out.keys[kept] = out.keys[i]
                out.words[kept] = out.words[i]
                for j in range(state.values.shape[1]):
                    out.values[kept, j] = out.values[i, j]
                if state.scalars.size:
                    out.scalars[kept] = out.scalars[i]
                if state.updates.size:
                    out.updates[kept] = out.updates[i]
                if state.times.size:
                    out.times[kept] = out.times[i]
                if state.scores.size:
                    out.scores[kept] = out.scores[i]
            kept += 1
    return kept


@compiled
def choose_rows(
    state: State, own: Array, since: Any, all_rows: Any, rows: Array
) -> Any:
    """Write the used rows of a partition that were seen in a step or later, or `all_rows`, to
    `rows` (int64); return their number.

    `own` (PARTITION[1]) is the partition at the beginning of the save.
    """
    partition = own[0]
    chunk, stop = partition.chunk, partition.next
    count = 0
    while chunk != NONE:
        for row in range(chunk * CHUNK, stop):
            word = state.meta[row, 1]
            passed = np.uint32((word - U64(since)) & U64(0xFFFFFFFF))
            rows[count] = row
            chosen = word != U64(0) and (all_rows or passed < np.uint32(1 << 31))
            count += 1 if chosen else 0
        chunk = state.chunk_before[chunk]
        stop = (chunk + 1) * CHUNK
    return count


def is_chosen(words: Array, since: Any, all_rows: bool) -> Array:
    """Whether rows with these words of `meta` are used and were seen in a step or later."""
    passed = words.astype(np.uint32) - since
    chosen: Array = (words != 0) & (all_rows | (passed < np.uint32(1 << 31)))
    return chosen


@compiled
def rows_of_partition(state: State, own: Array, rows: Array) -> None:
    """Write the numbers of all rows that a partition has ever used to `rows` (int64)."""
    partition = own[0]
    chunk, stop = partition.chunk, partition.next
    count = 0
    while chunk != NONE:
        for row in range(chunk * CHUNK, stop):
            rows[count] = row
            count += 1
        chunk = state.chunk_before[chunk]
        stop = (chunk + 1) * CHUNK


def copy_values(state: State, rows: Array, dim: int) -> Array:
    """Return the values of rows without slots, of shape [n, dim]."""
    return state.values[rows, :dim]


def entries_of(slots: Array) -> tuple[Array, Array]:
    """Return the keys and the words of the entries without a row."""
    if slots.ndim == 1:  # compact slots have no such entries
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    is_entry = (slots[:, 1] != 0) & (slots[:, 1] & U64(1) == 0)
    entries = slots[is_entry]
    return entries[:, 0], entries[:, 1]


def arrays_of(
    state: State, filters: Array, partition: int, latest: int
) -> dict[str, Array]:
    """Return the saved arrays of a partition. The table must not change during the call."""
    own = state.partitions[partition : partition + 1]
    used = row_room(own[0])
    room = RowArrays.room_for(state, used)
    read_rows(state, own, room)
    rows = put_copies(state, np.empty(0, np.uint32), used, room)
    saved = saved_arrays(state, room, int(rows), latest)
    start = int(own["start"][0])
    slots = state.slots[start : start + int(own["capacity"][0])]
    saved["entry_keys"], saved["entry_words"] = entries_of(slots)
    if filters.size:
        saved["filter"] = filters[partition].copy()
    return saved
