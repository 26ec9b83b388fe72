"""What a node sends to one peer: messages in order, as far as there is room.

`send` never waits for the ring or the socket: what finds no room stays here, and goes
when the peer gives blocks back or the socket is writable, from whichever thread learns
of it. The channel's bound limits how much that can be.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from placer.channel.protocol import Array, Key
from placer.channel.shared import frames
from placer.channel.shared.frames import INLINE, Kind
from placer.channel.shared.header import Arrays, opening, spread
from placer.channel.shared.layout import Cut
from placer.channel.shared.message import carried_blocks
from placer.channel.shared.region import Region
from placer.channel.shared.ring import Ring
from placer.channel.shared.stream import Stream
from placer.channel.wire_bodies import Refused


@dataclass(eq=False, slots=True)
class _Job:
    """A message on its way: what is left of it."""

    number: int
    frames: deque[bytes]
    blocks: deque[tuple[Cut, ...]]
    flat: list[Array]


class Outgoing:
    """The sending half of a link; safe to use from many threads."""

    def __init__(self, stream: Stream, what: str) -> None:
        self._stream = stream
        self._what = what
        self._ring: Ring | None = None
        self._known: set[int] = set()  # regions that the peer has
        self._number = 0
        self._order = threading.Lock()
        self._jobs: deque[_Job] = deque()
        self._moving = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether something waits for room in the ring or the socket."""
        return (bool(self._jobs) or self._stream.full) and not self._stream.broken

    def send(
        self,
        key: Key,
        arrays: list[Array],
        types: bytes,
        described: Arrays,
        places: Mapping[int, tuple[Region, int]],
    ) -> None:
        """Send a message of arrays, which `types` and `described` are the types of.

        Those that have places are not copied.
        """
        span = described.span
        at: dict[int, tuple[int, int]] = {}
        if places:
            at = {i: (region.number, offset) for i, (region, offset) in places.items()}
            _, span = spread(described.sizes, places)
        with self._order:
            number = self._number + 1
            *before, last = opening(number, key, types, arrays, at, span)
            blocks: deque[tuple[Cut, ...]] = deque()
            flat: list[Array] = []
            if span > INLINE:
                self._announce(self._made_ring().region)
                blocks.extend(carried_blocks(described.types, places))
                flat = [array.reshape(-1) for array in arrays]
            for region, _ in places.values():
                self._announce(region)
            self._number = number
            if not (self._jobs or blocks or before) and self._stream.offer(last):
                return
            self._jobs.append(_Job(number, deque([*before, last]), blocks, flat))
        self.go_on()

    def go_on(self) -> None:
        """Send on as far as there is room."""
        while self._can_go_on() and self._moving.acquire(blocking=False):
            try:
                self._advance()
            finally:
                self._moving.release()

    def give_back(self, mask: int) -> None:
        """The peer is done with these blocks of the ring; `Refused` if it had not."""
        if self._ring is None:
            raise Refused("blocks given back that were not filled")
        self._ring.give_back(mask)
        self.go_on()

    def close(self) -> None:
        """Forget what was not sent, and the ring."""
        self._jobs.clear()
        if self._ring is not None:
            self._ring.region.close()
            self._ring = None

    def _made_ring(self) -> Ring:
        if self._ring is None:
            self._ring = Ring(self._what)
        return self._ring

    def _announce(self, region: Region) -> None:
        if region.number not in self._known:
            self._known.add(region.number)
            self._stream.put(
                frames.frame(Kind.REGION, region.number, region.nbytes),
                frames.frame(Kind.DESCRIPTOR),
                file=region.fd,
            )

    def _can_go_on(self) -> bool:
        if not self._jobs or self._stream.full:
            return False
        job = self._jobs[0]
        ring = self._ring
        return bool(job.frames or not job.blocks or (ring is not None and ring.free))

    def _advance(self) -> None:
        while self._jobs:
            job = self._jobs[0]
            while job.frames:
                if not self._stream.offer(job.frames[0]):
                    return
                job.frames.popleft()
            while job.blocks:
                ring = self._ring
                if ring is None or not ring.free or self._stream.full:
                    return
                block = ring.fill(job.blocks.popleft(), job.flat)
                self._stream.put(frames.frame(Kind.BLOCK, job.number, block))
            self._jobs.popleft()
