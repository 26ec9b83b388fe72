"""Divides the payload of a message into pieces, in the same way on every stream.

Each array is split into fragments that fit into a piece. A fragment starts 64-byte aligned in its
piece, and an array is split at multiples of 64 bytes. So the fragments of an aligned array are
aligned in the array as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

from placer.channel.payload import as_bytes
from placer.channel.types import Array, ArrayType, Bytes
from placer.system.memory.aligned import round_up

PIECE: Final = 1 << 20
"""The largest number of bytes in a piece."""
MIN_FRAGMENT: Final = 4 << 10
"""If a piece has less room left than this, an array that does not fit starts in the next piece."""


class Fragment(NamedTuple):
    """A part of an array in a piece.

    Attributes:
        array: the index of the array.
        first: the index of the first element.
        numel: the number of elements.
        offset: the offset in the piece, in bytes.
        start: the offset in the array, in bytes.
        nbytes: the number of bytes.
    """

    array: int
    first: int
    numel: int
    offset: int
    start: int
    nbytes: int


@lru_cache(maxsize=256)
def piece_layout(types: tuple[ArrayType, ...]) -> tuple[tuple[Fragment, ...], ...]:
    """Return the fragments in each piece of a message; empty arrays have none.

    >>> import numpy as np
    >>> f = np.dtype("float32")
    >>> pieces = piece_layout(((f, (3,)), (f, (400, 1000))))
    >>> [[*map(tuple, fragments)] for fragments in pieces]  # doctest: +NORMALIZE_WHITESPACE
    [[(0, 0, 3, 0, 0, 12), (1, 0, 262128, 64, 0, 1048512)],
     [(1, 262128, 137872, 0, 1048512, 551488)]]
    """
    pieces: list[tuple[Fragment, ...]] = []
    fragments: list[Fragment] = []
    used = 0
    for index, (dtype, shape) in enumerate(types):
        item = dtype.itemsize
        size = prod(shape)
        first = 0
        while first < size:
            left = (size - first) * item
            room = PIECE - used
            if room < min(left, MIN_FRAGMENT):
                pieces.append(tuple(fragments))
                fragments, used, room = [], 0, PIECE
            count = min(left, room) // item
            nbytes = count * item
            fragments.append(Fragment(index, first, count, used, first * item, nbytes))
            used += round_up(nbytes)
            first += count
    if fragments:
        pieces.append(tuple(fragments))
    return tuple(pieces)


def copied_pieces(
    types: tuple[ArrayType, ...], referenced: Collection[int]
) -> tuple[tuple[Fragment, ...], ...]:
    """Return the adjacent fragments of each piece to send. The arrays with indices in
    `referenced` are not sent. A piece with no other arrays is left out."""
    if not referenced:
        return piece_layout(types)
    pieces = []
    for fragments in piece_layout(types):
        sent: list[Fragment] = []
        offset = 0
        for part in fragments:
            if part.array not in referenced:
                sent.append(part._replace(offset=offset))
                offset += round_up(part.nbytes)
        if sent:
            pieces.append(tuple(sent))
    return tuple(pieces)


def piece_bytes(fragments: Sequence[Fragment]) -> int:
    """Return the bytes of a piece, padded to a multiple of 64."""
    last = fragments[-1]
    return last.offset + round_up(last.nbytes)


def in_piece(piece: Bytes, fragment: Fragment) -> Bytes:
    return piece[fragment.offset : fragment.offset + fragment.nbytes]


def in_array(array: Array, fragment: Fragment) -> Bytes:
    """Return the bytes of a fragment in its array, which is C-contiguous."""
    return as_bytes(array)[fragment.start : fragment.start + fragment.nbytes]
