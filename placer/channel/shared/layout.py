"""How a message lies in blocks: the same for every message of the same types.

Arrays are cut into pieces of at most a block. A piece begins 64-byte aligned in its
block, and where an array is cut it is cut at a multiple of 64 bytes, so the pieces of an
aligned array are aligned too.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

import numpy as np

from placer.channel.protocol import Array
from placer.memory.arena import ALIGNMENT

BLOCK: Final = 1 << 20
SLIVER: Final = 4 << 10
"""An array that does not fit into so small a rest of a block begins in the next."""

Type = tuple[np.dtype[np.generic], tuple[int, ...]]


class Cut(NamedTuple):
    """`numel` elements of array number `array` from element `first` on.

    They lie `offset` bytes into their block.
    """

    array: int
    first: int
    numel: int
    offset: int


@lru_cache(maxsize=256)
def layout(types: tuple[Type, ...]) -> tuple[tuple[Cut, ...], ...]:
    """The pieces in each block of a message of these types; none of empty arrays.

    >>> f = np.dtype("float32")
    >>> [[*map(tuple, cuts)] for cuts in layout(((f, (3,)), (f, (400, 1000))))]
    [[(0, 0, 3, 0), (1, 0, 262128, 64)], [(1, 262128, 137872, 0)]]
    """
    blocks: list[tuple[Cut, ...]] = []
    cuts: list[Cut] = []
    used = 0
    for index, (dtype, shape) in enumerate(types):
        item = dtype.itemsize
        size = prod(shape)
        first = 0
        while first < size:
            left = (size - first) * item
            room = BLOCK - used
            if room < min(left, SLIVER):
                blocks.append(tuple(cuts))
                cuts, used, room = [], 0, BLOCK
            count = min(left, room) // item
            cuts.append(Cut(index, first, count, used))
            used += -(-count * item // ALIGNMENT) * ALIGNMENT
            first += count
    if cuts:
        blocks.append(tuple(cuts))
    return tuple(blocks)


def in_block(block: Array, cut: Cut, dtype: np.dtype[np.generic]) -> Array:
    """The piece as it lies in its block (of bytes)."""
    stop = cut.offset + cut.numel * dtype.itemsize
    return block[cut.offset : stop].view(dtype)


def in_array(flat: Array, cut: Cut) -> Array:
    """The piece as it lies in its own array, flattened."""
    return flat[cut.first : cut.first + cut.numel]
