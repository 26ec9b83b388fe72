"""Assembles the messages of one source, each exactly once.

The source numbers its messages from 1, and the pieces of a message have offsets. Only
the next piece of the next message is accepted. An earlier one is a duplicate; a later
one means that a frame was lost, which must be requested again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from placer.channel.frame_bodies import ArrayTypes
from placer.channel.payload import allocate, as_bytes
from placer.channel.types import Array, Key
from placer.memory.arena import Arena

FIRST = -1
"""The offset by which the piece in a MESSAGE frame comes before those in CHUNKs."""


class PartialMessage:
    """A message whose pieces are being received, straight into its arrays.

    Arrays of `out` that fit are used; others are allocated in `arena`. `total` and
    `filled` are bytes.
    """

    def __init__(
        self,
        key: Key,
        types: ArrayTypes,
        arena: Arena,
        out: Sequence[Array | None] | None,
    ) -> None:
        self.key = key
        self.total = types.total
        self.filled = 0
        self.arrays = allocate(types.types, arena, out, {})
        self._byte_views = [as_bytes(array) for array in self.arrays if array.nbytes]
        self._starts = [0, *accumulate(view.nbytes for view in self._byte_views)]

    def next_views(self, length: int) -> list[npt.NDArray[np.uint8]]:
        """Return where the next `length` bytes go: parts of one or more arrays."""
        views = []
        index = bisect_right(self._starts, self.filled) - 1
        offset = self.filled - self._starts[index]
        while length:
            view = self._byte_views[index][offset : offset + length]
            views.append(view)
            length -= view.nbytes
            index, offset = index + 1, 0
        return views

    def scatter(self, piece: bytes) -> None:
        """Copy the next bytes into the arrays, across their borders."""
        source = np.frombuffer(piece, np.uint8)
        for view in self.next_views(source.nbytes):
            view[:] = source[: view.nbytes]
            source = source[view.nbytes :]


@dataclass(slots=True)
class Receiver:
    """The state of one source: the next number, and the message in progress.

    `resend_requested_at` is the monotonic time of the last RESEND.
    """

    expected: int = 1
    partial: PartialMessage | None = None
    resend_requested_at: float = float("-inf")

    @property
    def next_piece(self) -> tuple[int, int]:
        """The number of the message and the offset of the piece that is expected."""
        offset = FIRST if self.partial is None else self.partial.filled
        return self.expected, offset
