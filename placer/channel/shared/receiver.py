"""Assembles what arrives from one peer: its memory, its messages, and their chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from placer.channel.frame_bodies import InvalidFrame
from placer.channel.message import Message
from placer.channel.payload import CHUNK
from placer.channel.shared import frames
from placer.channel.shared.chunks import CHUNKS
from placer.channel.shared.frame_socket import FrameSocket
from placer.channel.shared.frames import INLINE, MAX_LONG, Contents, decode_header
from placer.channel.shared.message import ChunkedMessage, InlineMessage
from placer.channel.shared.region import Bytes, attach
from placer.channel.types import Array
from placer.memory.arena import Arena

MAX_REGIONS: Final = 4096
"""Regions of a peer at most."""
RELEASE_BATCH: Final = CHUNKS // 2
"""Consumed chunks that are returned to the sender in one BEAT."""


@dataclass(eq=False, slots=True)
class Receiver:
    """The memory and the messages of one peer, from the frames that it sends.

    The `on_` methods are called by one thread at a time, in the order of the frames
    from `socket`. Each raises InvalidFrame for a frame that does not follow from those
    before it. `max_message` is the bytes of the largest message, without references.
    `release(mask)` returns chunks to the peer.
    """

    peer: str
    socket: FrameSocket
    arena: Arena
    max_message: int
    release: Callable[[int], None]
    regions: dict[int, Bytes] = field(default_factory=dict)
    _number: int = 0
    _long_data: bytes = b""
    _incomplete: ChunkedMessage | None = None
    _announced: tuple[int, int] = (0, 0)  # number and bytes of the region to come
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _unreported: int = 0  # consumed chunks to return to the peer, as bits
    _filled: set[int] = field(default_factory=set)  # chunks that this node owns

    def on_region(self, number: int, nbytes: int) -> None:
        """Expect memory of the peer in the next frame."""
        if number in self.regions or len(self.regions) >= MAX_REGIONS:
            raise InvalidFrame("region")
        if number == 0 and nbytes != CHUNKS * CHUNK:
            raise InvalidFrame("size of the chunk pool")
        self._announced = number, nbytes
        self.socket.expects_file = True

    def on_descriptor(self) -> None:
        """Map the memory that was announced."""
        file = self.socket.take_file()  # none if it was not announced
        if file is None:
            raise InvalidFrame("memory without a file, or a file without memory")
        number, nbytes = self._announced
        self.regions[number] = attach(file, nbytes)

    def on_long(self, data: memoryview[int]) -> None:
        """Store part of the types and references of the next message."""
        self._long_data += bytes(data[frames.HEADER.size :])
        if len(self._long_data) > MAX_LONG:
            raise InvalidFrame("length")

    def on_message(self, data: memoryview[int]) -> Message:
        """Return the message of a MESSAGE frame: whole, or one that comes in chunks."""
        if self._incomplete is not None:
            raise InvalidFrame("a message inside another")
        long_data, self._long_data = self._long_data, b""
        number, contents, payload = decode_header(data, long_data, self.max_message)
        if number != self._number + 1:
            raise InvalidFrame("number")
        self._number = number
        views = {i: self._view(contents, i) for i in contents.references}
        if contents.span <= INLINE:
            if payload:
                self.socket.keep_frame(len(data))
            arrays: list[Array] = [
                views[i] if i in views
                else np.ndarray(shape, dtype, payload, contents.offsets[i])
                for i, (dtype, shape) in enumerate(contents.arrays.types)
            ]  # fmt: skip
            return InlineMessage(
                self.peer,
                contents.key,
                contents.arrays.total,
                contents.copied_nbytes,
                arrays,
            )
        if 0 not in self.regions:
            raise InvalidFrame("no chunk pool")
        self._incomplete = ChunkedMessage(
            self.peer, contents, views, self.arena, self.regions[0], self._release_chunk
        )
        return self._incomplete

    def on_chunk(self, number: int, chunk: int) -> None:
        """Add the next chunk, number `chunk` of the pool, to the incomplete message."""
        message = self._incomplete
        if message is None or number != self._number:
            raise InvalidFrame("a chunk of no message")
        if chunk >= CHUNKS or chunk in self._filled:
            raise InvalidFrame("a chunk that is not free")
        self._filled.add(chunk)
        if message.add_chunk(chunk):
            self._incomplete = None

    def close(self) -> None:
        """Drop the memory of the peer; views that are left keep it mapped."""
        self.regions.clear()
        self._incomplete = None

    def _release_chunk(self, chunk: int, is_last: bool) -> None:
        """Return a consumed chunk to the peer, several in one frame."""
        # Forget it first: once the BEAT is sent, the peer may fill it again at once.
        self._filled.discard(chunk)
        # Returning half a pool at a time saves frames, and the sender fills the other
        # half meanwhile. The last chunk of a message returns all of them, because it
        # may be long until another chunk arrives. Several threads may consume messages
        # of this peer: the one that clears bits here is the one that reports them.
        with self._lock:
            self._unreported |= 1 << chunk
            count = self._unreported.bit_count()
            reported = self._unreported if count >= RELEASE_BATCH or is_last else 0
            self._unreported &= ~reported
        if reported:
            self.release(reported)

    def _view(self, contents: Contents, i: int) -> Array:
        """Return the view of an array in the peer's memory that a message refers to."""
        number, offset = contents.references[i]
        region = self.regions.get(number)
        end = offset + contents.arrays.sizes[i]
        if number == 0 or region is None or end > region.nbytes:
            raise InvalidFrame("a reference outside shared memory")
        dtype, shape = contents.arrays.types[i]
        return region[offset:end].view(dtype).reshape(shape)
