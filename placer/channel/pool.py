"""A pool of chunks of shared memory, which carry pieces of large messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from placer.channel.frames import InvalidFrame
from placer.channel.pieces import PIECE, Fragment, in_array, in_piece
from placer.channel.region import Region
from placer.channel.types import Array, Bytes

MAX_CHUNKS: Final = 8
"""The largest number of chunks in a pool; a chunk has room for one piece."""


def chunk_view(pool: Bytes, number: int) -> Bytes:
    return pool[number * PIECE : (number + 1) * PIECE]


class ChunkPool:
    """The chunks of one direction between two nodes, as the sender sees them.

    A chunk belongs to the sender until the PIECE frame with its number is sent. Then it
    belongs to the receiver until a BEAT returns it. Only the owner touches the bytes, so they
    need no lock. The most recently returned chunk is filled next, because it is still in the
    cache.

    Attributes:
        region: the shared memory.
        free: the numbers of the chunks that can be filled.
        users: for each filled chunk, the number of its message.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        # `fill` pops and `release` appends in different threads; each operation is atomic.
        self._count = region.nbytes // PIECE
        self.free = list(reversed(range(self._count)))
        self.users: dict[int, int] = {}

    def has_room(self, message: int) -> bool:
        """Return True if a piece of a message need not wait for a chunk.

        A chunk is free, or all chunks hold other messages, which the receiver may not consume
        soon. In the second case, the piece goes over the connection, and the receiver copies
        the other messages out of the pool.
        """
        return bool(self.free) or message not in [*self.users.values()]

    def fill(
        self, message: int, fragments: Sequence[Fragment], arrays: Sequence[Array]
    ) -> int:
        number = self.free.pop()
        self.users[number] = message
        chunk = chunk_view(self.region.array, number)
        for fragment in fragments:
            part = in_array(arrays[fragment.array], fragment)
            np.copyto(in_piece(chunk, fragment), part)
        return number

    def release(self, mask: int) -> None:
        """Free the chunks of a bit mask. Raises InvalidFrame for a chunk that was not
        filled."""
        freed = [number for number in range(self._count) if mask >> number & 1]
        if mask >> self._count or not set(freed).isdisjoint(self.free):
            raise InvalidFrame("returned chunks that were not filled")
        for number in freed:
            self.users.pop(number, None)
        self.free += freed
