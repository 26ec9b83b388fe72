"""Pieces of large messages go to another process through chunks of shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from placer.channel.frames import InvalidFrame
from placer.channel.pieces import PIECE, Fragment, in_array, in_piece
from placer.channel.region import Region
from placer.channel.types import Array, Bytes

MAX_CHUNKS: Final = 8
"""Chunks of a pool at most; each has room for a piece."""


def chunk_view(pool: Bytes, number: int) -> Bytes:
    """Return the bytes of a chunk of a pool."""
    return pool[number * PIECE : (number + 1) * PIECE]


class ChunkPool:
    """The chunks of one direction between two nodes, as the sender sees them.

    A chunk belongs to the sender until the PIECE frame with its number is sent, then to
    the receiver until a BEAT returns it; only the owner touches the bytes, so they need
    no lock. The chunk that was returned last is filled next, because it is still in the
    cache. `free` are the numbers of the chunks that can be filled, `users` the numbers
    of the messages in the others.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        # `fill` pops and `release` appends in different threads; each is atomic.
        self._count = region.nbytes // PIECE
        self.free = list(reversed(range(self._count)))
        self.users: dict[int, int] = {}

    def has_room(self, message: int) -> bool:
        """Whether a piece of a message need not wait for a chunk: one is free, or all have
        others, which may not be received before. Then the piece goes over the connection,
        and the receiver copies the others out of the pool."""
        return bool(self.free) or message not in [*self.users.values()]

    def fill(
        self, message: int, fragments: Sequence[Fragment], arrays: Sequence[Array]
    ) -> int:
        """Copy fragments of arrays into a free chunk; return its number."""
        number = self.free.pop()
        self.users[number] = message
        chunk = chunk_view(self.region.array, number)
        for fragment in fragments:
            part = in_array(arrays[fragment.array], fragment)
            np.copyto(in_piece(chunk, fragment), part)
        return number

    def release(self, mask: int) -> None:
        """Make the chunks of a bit mask free again.

        Raises InvalidFrame for a chunk that was not filled.
        """
        freed = [number for number in range(self._count) if mask >> number & 1]
        if mask >> self._count or not set(freed).isdisjoint(self.free):
            raise InvalidFrame("chunks returned that were not filled")
        for number in freed:
            self.users.pop(number, None)
        self.free += freed
