"""A message on its way to a peer, as frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from placer.channel import frames
from placer.channel.contents import Contents
from placer.channel.frame_socket import Buffer
from placer.channel.pieces import in_array, piece_bytes
from placer.channel.pool import ChunkPool
from placer.channel.types import Array
from placer.system.memory.aligned import ALIGNMENT

JOINED_FRAGMENTS: Final = 64
"""A piece of more fragments is copied into one buffer before it is sent."""
_PADDING: Final = tuple(bytes(n) for n in range(ALIGNMENT))


@dataclass(eq=False, slots=True)
class Outgoing:
    """A message that is being sent, or may have to be sent again.

    Attributes:
        header: the header.
        contents: the types and places of the arrays.
        arrays: the arrays.
        allowed: the number of pieces that the peer accepts so far.
        written: the number of pieces whose bytes are final.
        sent: the number of sent pieces.
        is_announced: whether the header has been sent.
    """

    header: frames.Message
    contents: Contents
    arrays: Sequence[Array]
    allowed: int
    written: int
    sent: int = 0
    is_announced: bool = False

    def head(self) -> bytes:
        """Return the frame of the header, with the payload if it is inline."""
        payload: list[bytes] = []
        if self.contents.is_inline:
            for i, array in enumerate(self.arrays):
                if i not in self.contents.references:
                    payload += array.tobytes(), _PADDING[-array.nbytes % ALIGNMENT]
        return frames.encode(self.header, *payload)

    @property
    def is_allowed(self) -> bool:
        return self.is_announced and self.sent < min(self.allowed, self.written)

    def add_written(self, array: int, stop: int) -> bool:
        """Count pieces without elements after `stop` of an array as written. Returns
        True if the number has grown."""
        pieces, before = self.contents.pieces, self.written
        while self.written < len(pieces):
            last = pieces[self.written][-1]
            if (last.array, last.first + last.numel) > (array, stop):
                break
            self.written += 1
        return self.written > before

    def next_piece(self, pool: ChunkPool | None) -> list[Buffer]:
        """Return the frame of the next piece, with its data in a free chunk or as buffers."""
        number, index = self.header.number, self.sent
        fragments = self.contents.pieces[index]
        self.sent += 1
        if pool is not None and pool.free:
            chunk = pool.fill(number, fragments, self.arrays)
            return [frames.encode(frames.Piece(number, index, chunk=chunk))]
        size = piece_bytes(fragments)
        buffers: list[Buffer] = [frames.encode(frames.Piece(number, index, size))]
        for part in fragments:
            buffers.append(in_array(self.arrays[part.array], part).data)
            if padding := -part.nbytes % ALIGNMENT:
                buffers.append(_PADDING[padding])
        return buffers if len(fragments) <= JOINED_FRAGMENTS else [b"".join(buffers)]
