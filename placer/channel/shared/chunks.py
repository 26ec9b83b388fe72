"""Large messages go through chunks of shared memory, which the sender fills and reuses.

How the arrays of a message are divided into chunks is the same for the same types. Each
array is split into fragments of at most a chunk. A fragment starts 64-byte aligned in
its chunk, and an array is split at multiples of 64 bytes, so the fragments of an
aligned array are aligned in the array too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

import numpy as np

from placer.channel.frame_bodies import InvalidFrame
from placer.channel.payload import CHUNK
from placer.channel.shared.region import Bytes, Region
from placer.channel.types import Array, ArrayType
from placer.memory.aligned import round_up

CHUNKS: Final = 8
"""Chunks of a pool."""
MIN_FRAGMENT: Final = 4 << 10
"""If a chunk has less room left than this, an array that does not fit starts in the
next chunk."""


class Fragment(NamedTuple):
    """`numel` elements of array number `array`, from element `first` on.

    They start `offset` bytes into their chunk.
    """

    array: int
    first: int
    numel: int
    offset: int


@lru_cache(maxsize=256)
def chunk_layout(types: tuple[ArrayType, ...]) -> tuple[tuple[Fragment, ...], ...]:
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
            used += round_up(count * item)
            first += count
    if fragments:
        chunks.append(tuple(fragments))
    return tuple(chunks)


def copied_chunks(
    types: tuple[ArrayType, ...], referenced: Collection[int]
) -> list[tuple[Fragment, ...]]:
    """Return the fragments of each chunk that goes through the pool.

    `referenced` are the indices of arrays that are not copied. A chunk that has only
    such arrays is left out.
    """
    if not referenced:
        return list(chunk_layout(types))
    chunks = [
        tuple(fragment for fragment in fragments if fragment.array not in referenced)
        for fragments in chunk_layout(types)
    ]
    return [fragments for fragments in chunks if fragments]


def in_chunk(chunk: Array, fragment: Fragment, dtype: np.dtype[np.generic]) -> Array:
    """Return the view of a fragment in its chunk, an array of bytes."""
    stop = fragment.offset + fragment.numel * dtype.itemsize
    return chunk[fragment.offset : stop].view(dtype)


def in_array(flat: Array, fragment: Fragment) -> Array:
    """Return the view of a fragment in its own array, flattened."""
    return flat[fragment.first : fragment.first + fragment.numel]


def chunk_view(pool: Bytes, number: int) -> Bytes:
    """Return the bytes of a chunk of a pool."""
    return pool[number * CHUNK : (number + 1) * CHUNK]


class ChunkPool:
    """The chunks of one direction between two nodes, as the sender sees them.

    A chunk belongs to the sender until its CHUNK frame is sent, then to the receiver
    until a BEAT returns it; only the owner touches the bytes, so they need no
    lock. The chunk that was returned last is filled next, because it is still in the
    cache. `region` is the memory, None until it is needed; `free` are the numbers of
    the chunks that can be filled.
    """

    def __init__(self) -> None:
        self.region: Region | None = None
        # `fill` pops and `release` appends in different threads; each is atomic.
        self.free = list(reversed(range(CHUNKS)))

    def fill(self, fragments: Sequence[Fragment], flat: Sequence[Array]) -> int:
        """Copy fragments of flattened arrays into a free chunk; return its number."""
        assert self.region is not None
        number = self.free.pop()
        chunk = chunk_view(self.region.array, number)
        for fragment in fragments:
            array = flat[fragment.array]
            np.copyto(in_chunk(chunk, fragment, array.dtype), in_array(array, fragment))
        return number

    def release(self, mask: int) -> None:
        """Make the chunks of a bit mask free again.

        Raises InvalidFrame for a chunk that was not filled.
        """
        freed = [number for number in range(CHUNKS) if mask >> number & 1]
        if mask >> CHUNKS or not set(freed).isdisjoint(self.free):
            raise InvalidFrame("chunks returned that were not filled")
        self.free += freed
