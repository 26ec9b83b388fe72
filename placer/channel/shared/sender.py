"""Sends messages to one peer, in order, as far as there is room.

`send` never waits for the ring or the socket. What finds no room is queued here, and is
sent when the peer returns chunks or the socket becomes writable, by whichever thread
learns of it. The bound of the channel limits how much can be queued.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from placer.channel.protocol import Array, Key
from placer.channel.shared import frames
from placer.channel.shared.frames import INLINE, Kind
from placer.channel.shared.header import ArrayTypes, encode_header, inline_offsets
from placer.channel.shared.layout import Fragment
from placer.channel.shared.message import copied_chunks
from placer.channel.shared.region import Region
from placer.channel.shared.ring import Ring
from placer.channel.shared.stream import Stream
from placer.channel.wire_bodies import InvalidFrame


@dataclass(eq=False, slots=True)
class _QueuedMessage:
    """The frames and the chunks of a message that are still to be sent."""

    number: int
    frames: deque[bytes]
    chunks: deque[tuple[Fragment, ...]]
    flat: list[Array]


class Sender:
    """Sends messages to one peer; safe to use from many threads.

    `what` names the direction in errors.
    """

    def __init__(self, stream: Stream, what: str) -> None:
        self._stream = stream
        self._what = what
        self._ring: Ring | None = None
        self._announced: set[int] = set()  # numbers of regions sent to the peer
        self._number = 0
        self._order_lock = threading.Lock()
        self._queue: deque[_QueuedMessage] = deque()
        self._advance_lock = threading.Lock()

    @property
    def has_pending(self) -> bool:
        """Whether a message or a frame waits for room in the ring or the socket."""
        return (bool(self._queue) or self._stream.full) and not self._stream.broken

    def send(
        self,
        key: Key,
        arrays: list[Array],
        types: bytes,
        array_types: ArrayTypes,
        references: Mapping[int, tuple[Region, int]],
    ) -> None:
        """Send a message without waiting.

        `arrays` are C-contiguous, `types` and `array_types` are what
        `header.encode_types` returned for them, and `references` maps the indices of
        arrays in shared memory, which are not copied, to their region and offset.
        Raises RunError when the system has no memory for the ring.
        """
        span = array_types.span
        encoded: dict[int, tuple[int, int]] = {}
        if references:
            encoded = {
                i: (region.number, offset) for i, (region, offset) in references.items()
            }
            _, span = inline_offsets(array_types.sizes, references)
        # Numbers are assigned, and messages queued, in the order of this lock. The
        # number is used up only once everything that may raise has been done: the peer
        # accepts no gaps.
        with self._order_lock:
            number = self._number + 1
            *long_frames, header = encode_header(
                number, key, types, arrays, encoded, span
            )
            chunks: deque[tuple[Fragment, ...]] = deque()
            flat: list[Array] = []
            if span > INLINE:
                self._announce(self._get_ring().region)
                chunks.extend(copied_chunks(array_types.types, references))
                flat = [array.reshape(-1) for array in arrays]
            for region, _ in references.values():
                self._announce(region)
            self._number = number
            if not (self._queue or chunks or long_frames) and self._stream.offer(
                header
            ):
                return
            self._queue.append(
                _QueuedMessage(number, deque([*long_frames, header]), chunks, flat)
            )
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
        """Reuse ring chunks (a bit mask) that the peer has returned, and send more.

        Raises InvalidFrame for a chunk that the peer did not have.
        """
        if self._ring is None:
            raise InvalidFrame("chunks returned that were not filled")
        self._ring.release(mask)
        self.resume()

    def close(self) -> None:
        """Drop what was not sent, and free the ring."""
        self._queue.clear()
        if self._ring is not None:
            self._ring.region.close()
            self._ring = None

    def _get_ring(self) -> Ring:
        if self._ring is None:
            self._ring = Ring(self._what)
        return self._ring

    def _announce(self, region: Region) -> None:
        """Send a region to the peer once, before the first frame that refers to it."""
        if region.number not in self._announced:
            self._announced.add(region.number)
            self._stream.put(
                frames.frame(Kind.REGION, region.number, region.nbytes),
                frames.frame(Kind.DESCRIPTOR),
                file=region.fd,
            )

    def _can_advance(self) -> bool:
        if not self._queue or self._stream.full:
            return False
        message = self._queue[0]
        ring = self._ring
        return bool(
            message.frames
            or not message.chunks
            or (ring is not None and ring.has_free_chunk)
        )

    def _advance(self) -> None:
        while self._queue:
            message = self._queue[0]
            while message.frames:
                if not self._stream.offer(message.frames[0]):
                    return
                message.frames.popleft()
            while message.chunks:
                ring = self._ring
                if ring is None or not ring.has_free_chunk or self._stream.full:
                    return
                # From this frame on the chunk is the peer's, until its FREE.
                chunk = ring.fill(message.chunks.popleft(), message.flat)
                self._stream.put(frames.frame(Kind.CHUNK, message.number, chunk))
            # Not earlier: while a message is in the queue, `send` does not overtake it.
            self._queue.popleft()
