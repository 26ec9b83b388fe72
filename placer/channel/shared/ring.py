"""The ring of a directed pair: a few blocks that the sender fills and gets back.

Its memory is made with the first message that needs it. The block given back last is
filled next: it is still in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from placer.channel.protocol import Array
from placer.channel.shared.layout import BLOCK, Cut, in_array, in_block
from placer.channel.shared.region import Bytes, Region
from placer.channel.wire_bodies import Refused

BLOCKS: Final = 8


class Ring:
    """The sender's side of a ring."""

    def __init__(self, what: str) -> None:
        self.region = Region(0, BLOCKS * BLOCK, what)
        self._free = list(reversed(range(BLOCKS)))

    @property
    def free(self) -> bool:
        """Whether a block can be filled."""
        return bool(self._free)

    def fill(self, cuts: Sequence[Cut], flat: Sequence[Array]) -> int:
        """Copy these pieces of the flattened arrays into a free block: its number."""
        number = self._free.pop()
        block = block_of(self.region.array, number)
        for cut in cuts:
            array = flat[cut.array]
            np.copyto(in_block(block, cut, array.dtype), in_array(array, cut))
        return number

    def give_back(self, mask: int) -> None:
        """These blocks (bits) are free again; `Refused` for others than were filled."""
        freed = [number for number in range(BLOCKS) if mask >> number & 1]
        if mask >> BLOCKS or not set(freed).isdisjoint(self._free):
            raise Refused("blocks given back that were not filled")
        self._free += freed


def block_of(ring: Bytes, number: int) -> Bytes:
    """The bytes of a block."""
    return ring[number * BLOCK : (number + 1) * BLOCK]
