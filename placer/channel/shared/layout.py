"""How the arrays of a message are divided into chunks: the same for the same types.

Each array is split into fragments of at most a chunk. A fragment starts 64-byte aligned
in its chunk, and an array is split at multiples of 64 bytes, so the fragments of an
aligned array are aligned in the array too.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

import numpy as np

from placer.channel.protocol import Array
from placer.memory.arena import ALIGNMENT

CHUNK: Final = 1 << 20
"""Bytes of a chunk."""
MIN_FRAGMENT: Final = 4 << 10
"""If a chunk has less room left than this, an array that does not fit starts in the
next chunk."""

Type = tuple[np.dtype[np.generic], tuple[int, ...]]


class Fragment(NamedTuple):
    """`numel` elements of array number `array`, from element `first` on.

    They start `offset` bytes into their chunk.
    """

    array: int
    first: int
    numel: int
    offset: int


@lru_cache(maxsize=256)
def chunk_layout(types: tuple[Type, ...]) -> tuple[tuple[Fragment, ...], ...]:
    """Return the fragments in each chunk of a message; empty arrays have none.

    >>> f = np.dtype("float32")
    >>> chunks = chunk_layout(((f, (3,)), (f, (400, 1000))))
    >>> [[*map(tuple, fragments)] for fragments in chunks]
    [[(0, 0, 3, 0), (1, 0, 262128, 64)], [(1, 262128, 137872, 0)]]
    """
    chunks: list[tuple[Fragment, ...]] = []
    fragments: list[Fragment] = []
    used = 0
    for index, (dtype, shape) in enumerate(types):
        item = dtype.itemsize
        size = prod(shape)
        first = 0
        while first < size:
            left = (size - first) * item
            room = CHUNK - used
            if room < min(left, MIN_FRAGMENT):
                chunks.append(tuple(fragments))
                fragments, used, room = [], 0, CHUNK
            count = min(left, room) // item
            fragments.append(Fragment(index, first, count, used))
            used += -(-count * item // ALIGNMENT) * ALIGNMENT
            first += count
    if fragments:
        chunks.append(tuple(fragments))
    return tuple(chunks)


def in_chunk(chunk: Array, fragment: Fragment, dtype: np.dtype[np.generic]) -> Array:
    """Return the view of a fragment in its chunk, an array of bytes."""
    stop = fragment.offset + fragment.numel * dtype.itemsize
    return chunk[fragment.offset : stop].view(dtype)


def in_array(flat: Array, fragment: Fragment) -> Array:
    """Return the view of a fragment in its own array, flattened."""
    return flat[fragment.first : fragment.first + fragment.numel]
