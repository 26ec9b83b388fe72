"""Loops that read rows and create new rows for a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from placer.tables.machine_code import Compiled, compiled
from placer.tables.sparse.hashing import U64, mix, partition_of
from placer.tables.sparse.intrinsics import AHEAD, prefetch
from placer.tables.sparse.row_memory import take_row
from placer.tables.sparse.state import Array, State, word_of_row

_MAX_UINT32 = 2**32 - 1


@cache
def compile_gather(dim: int, dtype: str) -> Callable[..., None]:
    """Return a compiled function that copies the first `dim` columns of rows to `out`.

    Its arguments are `values`, the rows (int64[n]), the default value for rows below 0, and
    `out` of shape [n, dim] and this dtype.
    """
    itemsize = np.dtype(dtype).itemsize
    lines = -(-dim * itemsize // 64)

    def gather(values: Array, rows: Array, default: Any, out: Array) -> None:
        base = U64(values.ctypes.data)
        nbytes = U64(values.shape[1] * itemsize)
        for i in range(rows.size):
            if i + AHEAD < rows.size and rows[i + AHEAD] >= 0:
                first = base + U64(rows[i + AHEAD]) * nbytes
                for line in range(lines):
                    prefetch(first + U64(64 * line))
            row = rows[i]
            if row >= 0:
                for j in range(dim):
                    out[i, j] = values[row, j]
            else:
                for j in range(dim):
                    out[i, j] = default

    return Compiled(gather)


@compiled
def take_rows(state: State, bits: Any, keys: Array, new: Array, rows: Array) -> None:
    """Allocate a row for each key that is `new` (bool[n]), and write it to `rows`."""
    for i in range(keys.size):
        if new[i]:
            own = state.partitions[partition_of(mix(keys[i]), bits)]
            rows[i] = take_row(state, own)


@compiled
def begin_rows(
    state: State, keys: Array, new: Array, rows: Array, words: Array
) -> None:
    """Write the key of each new row to `meta`, and its entry to `words`."""
    for i in range(keys.size):
        if new[i]:
            state.meta[rows[i], 0] = keys[i]
            state.meta[rows[i], 1] = U64(0)
            words[i] = word_of_row(rows[i])


@compiled
def fill_slots(
    state: State, rows: Array, begin: Any, first: Array, scalar: Any
) -> None:
    """Initialize everything except the values of new rows.

    Writes `first` to the columns from `begin` on and `scalar` to the rule's number for the
    row. The score, the time and the number of updates become 0.
    """
    for i in range(rows.size):
        row = rows[i]
        for j in range(first.size):
            state.values[row, begin + j] = first[j]
        if state.scalars.size:
            state.scalars[row] = scalar
        if state.updates.size:
            state.updates[row] = np.uint32(0)
        if state.times.size:
            state.times[row] = np.uint32(0)
        if state.scores.size:
            state.scores[row] = np.float32(0)


@compiled
def note_seen(
    state: State,
    rows: Array,
    occurrences: Array,
    scores: Array,
    times: Array,
    step: Any,
) -> None:
    """Note that the rows that are not below 0 have occurred in a step.

    Times may arrive in any order, so a row keeps its latest time.
    """
    meta = U64(state.meta.ctypes.data)
    for i in range(rows.size):
        if i + AHEAD < rows.size and rows[i + AHEAD] >= 0:
            prefetch(meta + U64(16) * U64(rows[i + AHEAD]))
        row = rows[i]
        if row >= 0:
            before = np.int64(state.meta[row, 1] >> U64(32))
            count: Any = min(before + np.int64(occurrences[i]), _MAX_UINT32)
            state.meta[row, 1] = (U64(count) << U64(32)) | U64(step & 0xFFFFFFFF)
            if state.scores.size:
                state.scores[row] += scores[i]
            if state.times.size:
                state.times[row] = max(state.times[row], times[i])
