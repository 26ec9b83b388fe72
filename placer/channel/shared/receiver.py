"""Putting together what comes from one peer: its memory, its messages, their blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from placer.channel.message import Message
from placer.channel.protocol import Array
from placer.channel.shared import frames
from placer.channel.shared.frames import INLINE
from placer.channel.shared.header import MAX_LONG, Contents, read_opening
from placer.channel.shared.layout import BLOCK
from placer.channel.shared.message import Parcel, small
from placer.channel.shared.region import Bytes, attach
from placer.channel.shared.ring import BLOCKS, block_of
from placer.channel.wire_bodies import Refused
from placer.memory.arena import Arena

MAX_REGIONS: Final = 4096
TOGETHER: Final = BLOCKS // 2
"""Blocks that are given back in one frame."""


class Intake:
    """The receiving half of a link; its frames are handled one at a time.

    Every method raises `Refused` for a frame that does not follow from those before.
    `keep` leaves the frame of so many bytes where it is, `release` gives blocks (bits)
    back to the peer.
    """

    def __init__(
        self,
        peer: str,
        arena: Arena,
        maximum: int,
        keep: Callable[[int], None],
        release: Callable[[int], None],
    ) -> None:
        self._peer = peer
        self._arena = arena
        self._maximum = maximum
        self._keep = keep
        self._release = release
        self._number = 0
        self._before = b""
        self._parcel: Parcel | None = None
        self._regions: dict[int, Bytes] = {}
        self._announced: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._freed = 0  # blocks that the peer is still to be told of, as bits
        self._filled: set[int] = set()  # blocks of the ring that were not released

    def on_region(self, number: int, nbytes: int) -> None:
        """The next frame will bring memory."""
        if number in self._regions or len(self._regions) >= MAX_REGIONS:
            raise Refused("region")
        if number == 0 and nbytes != BLOCKS * BLOCK:
            raise Refused("size of the ring")
        self._announced = number, nbytes

    def on_file(self, file: int | None) -> None:
        """The memory that was announced; takes the descriptor over."""
        announced, self._announced = self._announced, None
        if announced is None or file is None:
            raise Refused("memory without a file, or a file without memory")
        number, nbytes = announced
        try:
            self._regions[number] = attach(file, nbytes)
        except ValueError as error:
            raise Refused(f"shared memory: {error}") from None

    def on_long(self, data: memoryview[int]) -> None:
        """Part of the types and places of the next message."""
        self._before += bytes(data[frames.HEADER.size :])
        if len(self._before) > MAX_LONG:
            raise Refused("length")

    def on_message(
        self, number: int, placed: int, length: int, data: memoryview[int]
    ) -> Message:
        """The beginning of a message, or all of it."""
        if number != self._number + 1:
            raise Refused("number")
        if self._parcel is not None:
            raise Refused("a message inside another")
        before, self._before = self._before, b""
        contents, payload = read_opening(
            number, placed, length, data, before, self._maximum
        )
        self._number = number
        views = {i: self._view(contents, i) for i in contents.places}
        if contents.span <= INLINE:
            if payload:
                self._keep(len(data))
            return small(self._peer, contents, payload, views)
        if 0 not in self._regions:
            raise Refused("no ring")
        ring = self._regions[0]
        self._parcel = Parcel(
            self._peer,
            contents,
            views,
            self._arena,
            lambda number: block_of(ring, number),
            self._give_back,
        )
        return self._parcel

    def on_block(self, number: int, block: int) -> None:
        """The next block of the message that has begun."""
        parcel = self._parcel
        if parcel is None or number != parcel.number:
            raise Refused("a block of no message")
        if block >= BLOCKS or block in self._filled:
            raise Refused("a block that is not free")
        self._filled.add(block)
        parcel.add(block)
        if parcel.whole:
            self._parcel = None

    def close(self) -> None:
        """Forget the peer's memory; views that are left keep it."""
        self._regions.clear()
        self._parcel = None

    def _give_back(self, block: int, last: bool) -> None:
        """Some reader is done with a block; a few are given back together.

        The sender has the others meanwhile, so it never waits for these few. What is
        left when a message is done goes at once.
        """
        self._filled.discard(block)
        with self._lock:
            self._freed |= 1 << block
            count = self._freed.bit_count()
            told = self._freed if count >= TOGETHER or last else 0
            self._freed &= ~told
        if told:
            self._release(told)

    def _view(self, contents: Contents, i: int) -> Array:
        """An array of a message that lies in the peer's memory."""
        number, offset = contents.places[i]
        region = self._regions.get(number)
        end = offset + contents.arrays.sizes[i]
        if number == 0 or region is None or end > region.nbytes:
            raise Refused("a place outside shared memory")
        dtype, shape = contents.arrays.types[i]
        return region[offset:end].view(dtype).reshape(shape)
