"""Assembles the messages of one source, each exactly once.

The source numbers its messages from 1, and the pieces of a message have offsets. Only
the next piece of the next message is accepted. An earlier one is a duplicate; a later
one means that a frame was lost, which must be requested again.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from placer.channel.payload import allocate, as_bytes
from placer.channel.types import Array, Key
from placer.channel.zeromq import wire
from placer.memory.arena import Arena


class PieceOrder(Enum):
    """How a piece relates to the next one that is expected."""

    NEXT = auto()
    DUPLICATE = auto()
    GAP = auto()


class PartialMessage:
    """A message whose pieces are being received, straight into its arrays.

    Arrays of `out` that fit are used; others are allocated in `arena`. `total` and
    `filled` are bytes.
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
        self.arrays = allocate(contents.types, arena, out)
        self._byte_views: list[npt.NDArray[np.uint8]] = []
        self._starts: list[int] = []
        start = 0
        for array in self.arrays:
            if array.nbytes:
                self._byte_views.append(as_bytes(array))
                self._starts.append(start)
                start += array.nbytes
        self._index = 0  # the index of the array that `filled` is in

    def contiguous_view(self, length: int) -> npt.NDArray[np.uint8] | None:
        """Return where the next `length` bytes go, or None if not in one array."""
        part = self._byte_views[self._index]
        offset = self.filled - self._starts[self._index]
        return (
            part[offset : offset + length] if offset + length <= part.nbytes else None
        )

    def scatter(self, piece: bytes) -> None:
        """Copy the next bytes into the arrays, across their borders."""
        source = np.frombuffer(piece, np.uint8)
        index = self._index
        filled = self.filled
        while source.nbytes:
            part = self._byte_views[index]
            offset = filled - self._starts[index]
            length = min(source.nbytes, part.nbytes - offset)
            part[offset : offset + length] = source[:length]
            source = source[length:]
            filled += length
            index += 1

    def advance(self, length: int) -> bool:
        """Count `length` bytes as filled; return whether the message is whole."""
        self.filled += length
        while (
            self._index + 1 < len(self._byte_views)
            and self._starts[self._index + 1] <= self.filled
        ):
            self._index += 1
        return self.filled == self.total


class Receiver:
    """The state of one source: the next number, and the message in progress."""

    def __init__(self) -> None:
        self.expected = 1
        self.partial: PartialMessage | None = None
        self.resend_requested_at = float("-inf")  # monotonic time of the last RESEND

    def classify(self, number: int, offset: int, *, is_first: bool) -> PieceOrder:
        """Compare a piece with the one that is expected.

        `is_first` is true for a MESSAGE frame, which starts a message, and false for a
        CHUNK.
        """
        if number != self.expected:
            return PieceOrder.DUPLICATE if number < self.expected else PieceOrder.GAP
        if self.partial is None:
            return PieceOrder.NEXT if is_first else PieceOrder.GAP
        if is_first or offset < self.partial.filled:
            return PieceOrder.DUPLICATE
        return PieceOrder.NEXT if offset == self.partial.filled else PieceOrder.GAP

    def finish(self) -> PartialMessage:
        """Return the message, which is whole, and expect the next one."""
        partial = self.partial
        assert partial is not None
        self.partial = None
        self.expected += 1
        return partial
