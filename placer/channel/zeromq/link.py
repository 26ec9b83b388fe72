"""The way to one peer: a PUSH socket, and what may have to be sent again.

A ZeroMQ socket is not safe to use from two threads at once; a lock around each use makes
it so, and saves the hop over a thread that owns it. Sending never blocks: the bound is
kept before a message gets here, and the queue of the socket itself has none. A frame
that finds no connection is dropped: the peer asks for what it misses.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import zmq

from placer.channel.payload import Piece
from placer.channel.zeromq.wire import INLINE, INLINED, Kind, Stamp

BUFFER: Final = 256 << 10
"""Bytes of the system's socket buffers: on one machine, where addresses are, what is in
them then stays in the cache, which takes a third off the CPU time of large messages."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that the peer has not yet told us it has whole."""

    number: int
    contents: bytes
    pieces: Sequence[Piece]


class Link:
    """The outgoing half of a connection; safe to use from many threads."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.arrived = 0  # the last number that the peer has whole
        self._lock = threading.Lock()
        self._sent = 0
        self._kept: deque[Sent] = deque()
        socket = context.socket(zmq.PUSH)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.SNDBUF, BUFFER)
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        # Queue for a live connection only: what was meant for one that broke is sent
        # again in order, never some of it by the socket and some by us.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        # Milliseconds: a peer that is just starting is found soon.
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        socket.connect(endpoint)
        self._socket = socket

    def message(self, stamp: Stamp, contents: bytes, pieces: Sequence[Piece]) -> None:
        """Send a message under the next number, and keep it until it has arrived."""
        with self._lock:
            self._sent += 1
            sent = Sent(self._sent, contents, pieces)
            self._kept.append(sent)
            self._transmit(stamp, sent)

    def control(
        self,
        stamp: Stamp,
        kind: Kind,
        *,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        flags: int = 0,
        body: bytes = b"",
    ) -> bool:
        """Send a frame without payload; False when there is no connection."""
        with self._lock:
            return self._push((stamp.header(kind, a, b, c, flags) + body,))

    def state(
        self, stamp: Stamp, kind: Kind, *, got: int = 0, credit: int = 0, flags: int = 0
    ) -> None:
        """Send a BEAT or GOODBYE; its `a` holds for what went before it on this link."""
        with self._lock:
            self._push((stamp.header(kind, self._sent, got, credit, flags),))

    def forget(self, arrived: int) -> None:
        """The peer has every message up to number `arrived`."""
        with self._lock:
            if not self.arrived < arrived <= self._sent:
                return
            self.arrived = arrived
            while self._kept and self._kept[0].number <= arrived:
                self._kept.popleft()

    def resend(self, stamp: Stamp, number: int) -> None:
        """Send again all kept messages from `number` on."""
        with self._lock:
            for sent in self._kept:
                if sent.number >= number:
                    self._transmit(stamp, sent)

    @property
    def delivered(self) -> bool:
        """Whether the peer has everything that was sent."""
        with self._lock:
            return self.arrived == self._sent

    def close(self, linger: float) -> None:
        """Close the socket; what is queued may still leave for `linger` seconds."""
        with self._lock:
            self._kept.clear()
            self._socket.close(linger=int(linger * 1000))

    def _transmit(self, stamp: Stamp, sent: Sent) -> None:
        pieces = sent.pieces
        total = sum(len(piece) for piece in pieces)
        first = len(pieces[0]) if pieces else 0
        if 0 < total <= INLINE:
            header = stamp.header(Kind.MESSAGE, sent.number, total, 0, INLINED)
            self._push((b"".join((header, sent.contents, *pieces)),))
            return
        opening = stamp.header(Kind.MESSAGE, sent.number, total, first) + sent.contents
        if not self._push((opening, *pieces[:1])):
            return
        offset = first
        for piece in pieces[1:]:
            header = stamp.header(Kind.CHUNK, sent.number, offset, len(piece))
            if not self._push((header, piece)):
                return
            offset += len(piece)

    def _push(self, parts: Sequence[Piece]) -> bool:
        """Hand one ZeroMQ message to the socket; False when there is no connection."""
        last = len(parts) - 1
        try:
            for i, part in enumerate(parts):
                more = zmq.SNDMORE if i < last else 0
                self._socket.send(part, zmq.NOBLOCK | more, copy=i == 0)
        except zmq.Again:
            return False
        return True
