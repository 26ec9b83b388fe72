"""Sends messages to one peer, in order, as far as there is room.

`send` never waits for the chunk pool or the socket. What finds no room is queued, and
is sent when the peer returns chunks or the socket becomes writable, by whichever thread
learns of it. The bound of the channel limits how much can be queued.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placer.channel.payload import CHUNK
from placer.channel.shared import frames
from placer.channel.shared.chunks import CHUNKS, ChunkPool, Fragment, copied_chunks
from placer.channel.shared.frame_socket import FrameSocket
from placer.channel.shared.frames import INLINE, Contents, Kind, encode_header
from placer.channel.shared.region import Region
from placer.channel.types import Array


@dataclass(eq=False, slots=True)
class _QueuedMessage:
    """The header frames and the chunks of a message that are still to be sent."""

    number: int
    header: Sequence[bytes]
    chunks: deque[tuple[Fragment, ...]]
    flat: list[Array]


@dataclass(eq=False, slots=True)
class Sender:
    """Sends messages to one peer; safe to use from many threads.

    `regions` are those of `share`, by number. `what` names the direction in errors.
    """

    socket: FrameSocket
    regions: Mapping[int, Region]
    what: str
    _pool: ChunkPool = field(default_factory=ChunkPool)
    _announced: set[int] = field(default_factory=set)  # regions sent to the peer
    _number: int = 0
    _order_lock: threading.Lock = field(default_factory=threading.Lock)
    _queue: deque[_QueuedMessage] = field(default_factory=deque)
    _advance_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_pending(self) -> bool:
        """Whether something waits for room in the chunk pool or the socket."""
        return (bool(self._queue) or self.socket.full) and not self.socket.broken

    def send(self, contents: Contents, arrays: Sequence[Array]) -> None:
        """Send a message of C-contiguous arrays without waiting.

        Raises RunError when the system has no memory for the chunk pool.
        """
        # Numbers are assigned, and messages queued, in the order of this lock. The
        # number is used up only once everything that may raise has been done: the peer
        # accepts no gaps.
        with self._order_lock:
            number = self._number + 1
            header = encode_header(number, contents, arrays)
            chunks: deque[tuple[Fragment, ...]] = deque()
            flat: list[Array] = []
            if contents.span > INLINE:
                pool = self._pool
                pool.region = pool.region or Region(0, CHUNKS * CHUNK, self.what)
                self._announce(pool.region)
                chunks.extend(copied_chunks(contents.arrays.types, contents.references))
                flat = [array.reshape(-1) for array in arrays]
            for region, _ in contents.references.values():
                self._announce(self.regions[region])
            self._number = number
            if not (self._queue or chunks):
                self.socket.put(*header)
                return
            self._queue.append(_QueuedMessage(number, header, chunks, flat))
        self.resume()

    def resume(self) -> None:
        """Send what is queued, as far as there is room.

        Called by whichever thread has queued a message or has learned of room.
        """
        # One thread sends at a time. A thread that does not get the lock may return:
        # the thread that has it tests `_can_advance` once more after it released it, so
        # the room that the first one knows of is not missed.
        while self._can_advance() and self._advance_lock.acquire(blocking=False):
            try:
                self._advance()
            finally:
                self._advance_lock.release()

    def release_chunks(self, mask: int) -> None:
        """Reuse chunks of the pool (a bit mask) that the peer has returned.

        Raises InvalidFrame for a chunk that the peer did not have.
        """
        self._pool.release(mask)
        self.resume()

    def close(self) -> None:
        """Drop what was not sent, and free the chunk pool."""
        self._queue.clear()
        if self._pool.region is not None:
            self._pool.region.close()
            self._pool.region = None

    def _announce(self, region: Region) -> None:
        """Send a region to the peer once, before the first frame that refers to it."""
        if region.number not in self._announced:
            self._announced.add(region.number)
            self.socket.put(
                frames.frame(Kind.REGION, region.number, region.nbytes),
                frames.frame(Kind.DESCRIPTOR),
                file=region.fd,
            )

    def _can_advance(self) -> bool:
        if not self._queue or self.socket.full:
            return False
        message = self._queue[0]
        return bool(message.header or not message.chunks or self._pool.free)

    def _advance(self) -> None:
        while self._queue:
            message = self._queue[0]
            self.socket.put(*message.header)
            message.header = ()
            while message.chunks:
                if not self._pool.free or self.socket.full:
                    return
                # From this frame on the chunk is the peer's, until a BEAT returns it.
                chunk = self._pool.fill(message.chunks.popleft(), message.flat)
                self.socket.put(frames.frame(Kind.CHUNK, message.number, chunk))
            # Not earlier: while a message is in the queue, `send` does not overtake it.
            self._queue.popleft()
