"""The ring of one direction between two nodes: chunks that the sender fills and reuses.

A chunk belongs to the sender until its CHUNK frame is sent, then to the receiver until
its FREE frame arrives; only the owner touches the bytes, so they need no lock. The
memory is allocated with the first message that needs it. The chunk that was returned
last is filled next, because it is still in the cache: in spite of the name, the order
is that of a stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from placer.channel.protocol import Array
from placer.channel.shared.layout import CHUNK, Fragment, in_array, in_chunk
from placer.channel.shared.region import Bytes, Region
from placer.channel.wire_bodies import InvalidFrame

CHUNKS: Final = 8
"""Chunks of a ring."""


class Ring:
    """The sender's side of a ring: its memory, and the list of free chunks."""

    def __init__(self, what: str) -> None:
        self.region = Region(0, CHUNKS * CHUNK, what)
        # `fill` pops and `release` appends in different threads; each is atomic.
        self._free = list(reversed(range(CHUNKS)))

    @property
    def has_free_chunk(self) -> bool:
        """Whether a chunk can be filled now."""
        return bool(self._free)

    def fill(self, fragments: Sequence[Fragment], flat: Sequence[Array]) -> int:
        """Copy fragments of flattened arrays into a free chunk; return its number."""
        number = self._free.pop()
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
        if mask >> CHUNKS or not set(freed).isdisjoint(self._free):
            raise InvalidFrame("chunks returned that were not filled")
        self._free += freed


def chunk_view(ring: Bytes, number: int) -> Bytes:
    """Return the bytes of a chunk of a ring."""
    return ring[number * CHUNK : (number + 1) * CHUNK]
