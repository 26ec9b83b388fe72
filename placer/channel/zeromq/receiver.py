"""Putting the messages of one source together again, each exactly once.

The source numbers its messages from 1 and the pieces of each by offset. Only the next
piece of the next message is taken: what came before is a duplicate, what lies beyond
means that something was lost on the way and must be asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from placer.channel.payload import as_bytes, space
from placer.channel.protocol import Array, Key
from placer.channel.zeromq import wire
from placer.memory.arena import Arena


class Place(Enum):
    """Where a piece stands against the next one."""

    NEXT = auto()
    BEFORE = auto()
    BEYOND = auto()


class Partial:
    """A message while its pieces come in, straight into the arrays of the receiver.

    `out` arrays that fit are used; the others are taken from the arena.
    """

    def __init__(
        self,
        contents: wire.Contents,
        total: int,
        arena: Arena,
        out: Sequence[Array | None] | None,
    ) -> None:
        self.key: Key = contents.key
        self.total = total
        self.filled = 0
        self.arrays = space(contents.types, arena, out)
        self._parts: list[npt.NDArray[np.uint8]] = []
        self._starts: list[int] = []
        start = 0
        for array in self.arrays:
            if array.nbytes:
                self._parts.append(as_bytes(array))
                self._starts.append(start)
                start += array.nbytes
        self._at = 0  # the part that `filled` lies in

    def window(self, length: int) -> npt.NDArray[np.uint8] | None:
        """Where the next `length` bytes go, if that is inside one array."""
        part = self._parts[self._at]
        offset = self.filled - self._starts[self._at]
        return (
            part[offset : offset + length] if offset + length <= part.nbytes else None
        )

    def scatter(self, piece: bytes) -> None:
        """Copy the next bytes to where they go, across the borders of arrays."""
        source = np.frombuffer(piece, np.uint8)
        at = self._at
        filled = self.filled
        while source.nbytes:
            part = self._parts[at]
            offset = filled - self._starts[at]
            length = min(source.nbytes, part.nbytes - offset)
            part[offset : offset + length] = source[:length]
            source = source[length:]
            filled += length
            at += 1

    def advance(self, length: int) -> bool:
        """Count `length` bytes as filled; True when the message is whole."""
        self.filled += length
        while (
            self._at + 1 < len(self._parts)
            and self._starts[self._at + 1] <= self.filled
        ):
            self._at += 1
        return self.filled == self.total


class Incoming:
    """What has come from one source: the next number, and the message in the making."""

    def __init__(self) -> None:
        self.expected = 1
        self.partial: Partial | None = None
        self.asked_at = float("-inf")  # when a RESEND was last asked for

    def place(self, number: int, offset: int, *, opens: bool) -> Place:
        """Where a piece with this number and offset stands."""
        if number != self.expected:
            return Place.BEFORE if number < self.expected else Place.BEYOND
        if self.partial is None:
            return Place.NEXT if opens else Place.BEYOND
        if opens or offset < self.partial.filled:
            return Place.BEFORE
        return Place.NEXT if offset == self.partial.filled else Place.BEYOND

    def finish(self) -> Partial:
        """Take the whole message out and expect the next one."""
        partial = self.partial
        assert partial is not None
        self.partial = None
        self.expected += 1
        return partial
