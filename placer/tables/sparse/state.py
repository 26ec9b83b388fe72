"""Defines the arrays of a sparse table and the encoding of index entries."""

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
"""The mask for the step or second in which a key without a row was last seen."""
ABSENT: Final = -1
"""The value instead of a row, for a key without an entry."""
COUNTED: Final = -2
"""The value instead of a row, for a key with an entry but without a row."""
NONE: Final = -1
"""The end of a linked list of rows or chunks."""

PARTITION: Final = np.dtype(
    [
        ("start", np.uint64),  # the first slot
        ("capacity", np.uint64),  # the number of slots
        ("entries", np.int64),  # the number of slots in use
        ("rows", np.int64),  # the number of rows in use
        ("free", np.int64),  # the first row of the list of free rows
        ("next", np.int64),  # the first row of the last chunk that was never used
        ("chunk", np.int64),  # the last chunk; `chunk_before` links to earlier chunks
        ("chunks", np.int64),  # the number of chunks
    ]
)
"""The dtype of a partition of the keys, 64 bytes."""


def without_rows(partitions: int) -> Array:
    """Return empty partitions without slots and rows, of shape [partitions]."""
    found = np.zeros(partitions, PARTITION)
    for name in ("free", "chunk"):
        found[name] = NONE
    return found


class State(NamedTuple):
    """The arrays of a table. Arrays that a table does not need are empty.

    Attributes:
        partitions: PARTITION[partitions].
        slots: the index entries of all partitions: uint64[slots, 2] with a key and a word
            (a word of 0 is free), or uint64[slots] for compact slots.
        values: [rows, stride]: the value of each row, followed by its slots.
        meta: uint64[rows, 2]: the key of each row, and a word. The low half of the word is
            the step of the last occurrence, the high half the number of occurrences. The
            word of a free row is 0, and its "key" is the next free row plus 1.
        scalars: [rows]: the rule's number for each row.
        updates: uint32[rows]: the number of updates.
        times: uint32[rows]: when the row was last seen, in seconds.
        scores: float32[rows]: the score.
        chunk_before: int64[chunks]: the previous chunk of the same partition. A free chunk c
            stores the offset of the next free chunk from c + 1, so zeros link unused chunks.
        chunks: int64[3]: the first free chunk, the number of chunks in use, and the number
            of chunks ever used.
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


# The word of an entry. With a row: the lowest bit is 1, and the other bits are the row.
# Without a row: the lowest two bits are 10. The next 30 bits are the step or second of the
# last occurrence, and the high 32 bits are the count or the score.


@register_jitable
def word_of_row(row: Any) -> Any:
    return (U64(row) << U64(1)) | U64(1)


@register_jitable
def row_of(word: Any) -> Any:
    """Return the row in an entry's word; COUNTED for an entry without a row, ABSENT for 0."""
    if word & U64(1):
        return np.int64(word >> U64(1))
    return COUNTED if word else ABSENT


@register_jitable
def word_of_count(count: Any, seen: Any) -> Any:
    """Return the word for a uint32 count; `seen` is stored modulo 2**30."""
    seen = (U64(seen) & U64(SEEN_MASK)) << U64(2)
    return (U64(count) << U64(32)) | seen | U64(2)


@register_jitable
def count_of(word: Any) -> Any:
    return np.uint32(word >> U64(32))


@register_jitable
def later_seen(word: Any, seen: Any) -> Any:
    """Return the later of `seen` and the time in an entry's word, modulo 2**30."""
    seen = U64(seen) & U64(SEEN_MASK)
    before = seen_of(word)
    is_later = ((seen - before) & U64(SEEN_MASK)) <= U64(SEEN_MASK // 2)
    return seen if is_later or not word else before


@register_jitable
def word_of_score(score: Any, seen: Any) -> Any:
    """Return the word for a float32 score; `seen` is stored modulo 2**30."""
    return word_of_count(bits_of(np.float32(score)), seen)


@register_jitable
def score_of(word: Any) -> Any:
    return float32_of(count_of(word))


@register_jitable
def seen_of(word: Any) -> Any:
    return (word >> U64(2)) & U64(SEEN_MASK)
