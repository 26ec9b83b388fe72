"""Assembles what arrives from one peer: its memory, its messages, and their chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from placer.channel.message import Message
from placer.channel.protocol import Array
from placer.channel.shared import frames
from placer.channel.shared.frames import INLINE
from placer.channel.shared.header import MAX_LONG, Contents, decode_header
from placer.channel.shared.layout import CHUNK
from placer.channel.shared.message import MessageStream, inline_message
from placer.channel.shared.region import Bytes, attach
from placer.channel.shared.ring import CHUNKS, chunk_view
from placer.channel.wire_bodies import InvalidFrame
from placer.memory.arena import Arena

MAX_REGIONS: Final = 4096
"""Regions of a peer at most."""
RELEASE_BATCH: Final = CHUNKS // 2
"""Consumed chunks that are returned to the sender in one FREE frame."""


class Receiver:
    """The memory and the messages of one peer, from the frames that it sends.

    The `on_` methods are called by one thread at a time, in the order of the frames.
    Each raises InvalidFrame for a frame that does not follow from those before it.
    `maximum` is the bytes of the largest message, without references.
    `keep_frame(nbytes)` preserves the current frame (`Stream.keep_frame`), and
    `release(mask)` returns ring chunks to the peer.
    """

    def __init__(
        self,
        peer: str,
        arena: Arena,
        maximum: int,
        keep_frame: Callable[[int], None],
        release: Callable[[int], None],
    ) -> None:
        self._peer = peer
        self._arena = arena
        self._maximum = maximum
        self._keep_frame = keep_frame
        self._release = release
        self._number = 0
        self._long_data = b""
        self._message_stream: MessageStream | None = None
        self._regions: dict[int, Bytes] = {}
        self._announced: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._unreported = 0  # consumed chunks to return to the peer, as bits
        self._filled: set[int] = set()  # ring chunks that this node owns

    def on_region(self, number: int, nbytes: int) -> None:
        """Expect memory of the peer in the next frame."""
        if number in self._regions or len(self._regions) >= MAX_REGIONS:
            raise InvalidFrame("region")
        if number == 0 and nbytes != CHUNKS * CHUNK:
            raise InvalidFrame("size of the ring")
        self._announced = number, nbytes

    def on_file(self, file: int | None) -> None:
        """Map the memory that was announced; takes ownership of the descriptor."""
        announced, self._announced = self._announced, None
        if announced is None or file is None:
            raise InvalidFrame("memory without a file, or a file without memory")
        number, nbytes = announced
        try:
            self._regions[number] = attach(file, nbytes)
        except ValueError as error:
            raise InvalidFrame(f"shared memory: {error}") from None

    def on_long(self, data: memoryview[int]) -> None:
        """Store part of the types and references of the next message."""
        self._long_data += bytes(data[frames.HEADER.size :])
        if len(self._long_data) > MAX_LONG:
            raise InvalidFrame("length")

    def on_message(
        self,
        number: int,
        reference_count: int,
        types_length: int,
        data: memoryview[int],
    ) -> Message:
        """Return the message of a MESSAGE frame: whole, or a stream of chunks."""
        if number != self._number + 1:
            raise InvalidFrame("number")
        if self._message_stream is not None:
            raise InvalidFrame("a message inside another")
        long_data, self._long_data = self._long_data, b""
        contents, payload = decode_header(
            number, reference_count, types_length, data, long_data, self._maximum
        )
        self._number = number
        views = {i: self._view(contents, i) for i in contents.references}
        if contents.span <= INLINE:
            if payload:
                self._keep_frame(len(data))
            return inline_message(self._peer, contents, payload, views)
        if 0 not in self._regions:
            raise InvalidFrame("no ring")
        ring = self._regions[0]
        self._message_stream = MessageStream(
            self._peer,
            contents,
            views,
            self._arena,
            lambda number: chunk_view(ring, number),
            self._release_chunk,
        )
        return self._message_stream

    def on_chunk(self, number: int, chunk: int) -> None:
        """Add the next chunk, in ring chunk `chunk`, to the stream being received."""
        stream = self._message_stream
        if stream is None or number != stream.number:
            raise InvalidFrame("a chunk of no message")
        if chunk >= CHUNKS or chunk in self._filled:
            raise InvalidFrame("a chunk that is not free")
        self._filled.add(chunk)
        stream.add_chunk(chunk)
        if stream.is_complete:
            self._message_stream = None

    def close(self) -> None:
        """Drop the memory of the peer; views that are left keep it mapped."""
        self._regions.clear()
        self._message_stream = None

    def _release_chunk(self, chunk: int, is_last: bool) -> None:
        """Return a consumed chunk to the peer, several in one frame."""
        # Forget it first: once FREE is sent, the peer may fill it again at once.
        self._filled.discard(chunk)
        # Returning half a ring at a time saves frames, and the sender fills the other
        # half meanwhile. The last chunk of a message returns all of them, because it
        # may be long until another chunk arrives. Several threads may consume messages
        # of this peer: the one that clears bits here is the one that reports them.
        with self._lock:
            self._unreported |= 1 << chunk
            count = self._unreported.bit_count()
            reported = self._unreported if count >= RELEASE_BATCH or is_last else 0
            self._unreported &= ~reported
        if reported:
            self._release(reported)

    def _view(self, contents: Contents, i: int) -> Array:
        """Return the view of an array in the peer's memory that a message refers to."""
        number, offset = contents.references[i]
        region = self._regions.get(number)
        end = offset + contents.arrays.sizes[i]
        if number == 0 or region is None or end > region.nbytes:
            raise InvalidFrame("a reference outside shared memory")
        dtype, shape = contents.arrays.types[i]
        return region[offset:end].view(dtype).reshape(shape)
