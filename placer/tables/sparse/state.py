"""What the loops of a sparse table work on: its arrays, and how an entry is encoded."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numba.extending import register_jitable

from placer.plan.settings.sparse.row_bytes import CHUNK as CHUNK
from placer.tables.sparse.hashing import U64
from placer.tables.sparse.intrinsics import bits_of, float32_of

Array = npt.NDArray[Any]

SEEN_MASK: Final = 2**30 - 1
"""The bits of when a key without a row was last seen."""
ABSENT: Final = -1
"""In place of the row of a key without an entry."""
COUNTED: Final = -2
"""In place of the row of a key that has an entry, but no row yet."""
NONE: Final = -1
"""In place of a row or a chunk, at the end of a list."""

PARTITION: Final = np.dtype(
    [
        ("start", np.uint64),  # the first of its slots
        ("capacity", np.uint64),  # their number
        ("entries", np.int64),  # those that are in use
        ("rows", np.int64),
        ("free", np.int64),  # the first of its free rows, which are a list
        ("next", np.int64),  # the first row that was never used of its last chunk
        ("chunk", np.int64),  # that chunk, whose list leads to its other ones
        ("chunks", np.int64),  # their number
    ]
)
"""A partition of the keys, 64 bytes."""


def without_rows(partitions: int) -> Array:
    """Return partitions, of shape [partitions], that have no slots and no rows."""
    found = np.zeros(partitions, PARTITION)
    for name in ("free", "chunk"):
        found[name] = NONE
    return found


class State(NamedTuple):
    """The arrays of a table.

    `partitions` is of dtype PARTITION. `slots`, of shape [slots, 2], are the entries of
    all partitions, a key and a word each; a word of 0 is free. `values`, of shape
    [rows, stride], has the value of each row and its slots, one after the other. `meta`,
    of shape [rows, 2], has the key of each row, and the step in which it was last seen
    beside the number of its occurrences; that of a free row is 0, and its "key" the next
    free row. For each row, `scalars` has what a rule keeps once, `updates` (uint32) the
    number of its updates, `times` (uint32) when it was last seen, in seconds, and
    `scores` (float32) its score; they are empty where a table does not need them.
    `chunk_before`, int64 of shape [chunks], is the chunk that the partition of each chunk
    had before it; a free chunk leads to the next free one, relative to the one behind it:
    by 0 if neither was ever used. `chunks`, int64 of shape [3], is the first free chunk,
    the number of those in use, and that of those that were ever used.
    """

    partitions: Array
    slots: Array
    values: Array
    meta: Array
    scalars: Array
    updates: Array
    times: Array
    scores: Array
    chunk_before: Array
    chunks: Array


# The word of an entry: that of a row has the lowest bit 1, and the row above it. That of a
# key without a row has the lowest two bits 10, then 30 bits of when it was last seen, and
# 32 bits of how often, or its score.


@register_jitable
def word_of_row(row: Any) -> Any:
    return (U64(row) << U64(1)) | U64(1)


@register_jitable
def row_of(word: Any) -> Any:
    """Return the row of an entry's word, COUNTED if it has none, ABSENT for 0."""
    if word & U64(1):
        return np.int64(word >> U64(1))
    return COUNTED if word else ABSENT


@register_jitable
def word_of_count(count: Any, seen: Any) -> Any:
    """`count` is a uint32; `seen` is kept modulo 2**30."""
    seen = (U64(seen) & U64(SEEN_MASK)) << U64(2)
    return (U64(count) << U64(32)) | seen | U64(2)


@register_jitable
def count_of(word: Any) -> Any:
    return np.uint32(word >> U64(32))


@register_jitable
def later_seen(word: Any, seen: Any) -> Any:
    """Return the later one of when a key without a row was last seen, by its word, and
    `seen`, modulo 2**30."""
    seen = U64(seen) & U64(SEEN_MASK)
    before = seen_of(word)
    is_later = ((seen - before) & U64(SEEN_MASK)) <= U64(SEEN_MASK // 2)
    return seen if is_later or not word else before


@register_jitable
def word_of_score(score: Any, seen: Any) -> Any:
    """`score` is a float32."""
    return word_of_count(bits_of(np.float32(score)), seen)


@register_jitable
def score_of(word: Any) -> Any:
    return float32_of(count_of(word))


@register_jitable
def seen_of(word: Any) -> Any:
    return (word >> U64(2)) & U64(SEEN_MASK)
