"""The connection to one peer: a PUSH socket, and the messages that may be resent.

A ZeroMQ socket must not be used by two threads at once. A lock around each use ensures
that, which is faster than passing messages to a thread that owns the socket. Sending
never blocks: the mailbox has applied the bound before, and the queue of the socket has
no limit. A frame that finds no connection is dropped: the peer asks for what it misses.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import zmq

from placer.channel.payload import Chunk
from placer.channel.zeromq.wire import INLINE, INLINED, Kind, Stamp

BUFFER: Final = 256 << 10
"""Bytes of the system's socket buffers. All addresses are on this machine: what is in
such small buffers stays in the cache, which saves a third of the CPU time of large
messages."""


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message that the peer may not have; `contents` is its encoded header."""

    number: int
    contents: bytes
    chunks: Sequence[Chunk]


class Link:
    """Sends to one peer; safe to use from many threads."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.delivered_number = 0  # the last message that the peer has
        self._lock = threading.Lock()
        self._last_number = 0
        self._unacknowledged: deque[SentMessage] = deque()
        socket = context.socket(zmq.PUSH)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.SNDBUF, BUFFER)
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        # Queue frames only for a live connection. Without this the socket itself would
        # send some frames again after a break, out of order with those resent here.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        # Milliseconds, short so that a peer that is just starting is connected soon.
        socket.setsockopt(zmq.RECONNECT_IVL, 20)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        socket.connect(endpoint)
        self._socket = socket

    def send_message(
        self, stamp: Stamp, contents: bytes, chunks: Sequence[Chunk]
    ) -> None:
        """Send a message with the next number, and store it until the peer has it."""
        with self._lock:
            self._last_number += 1
            message = SentMessage(self._last_number, contents, chunks)
            self._unacknowledged.append(message)
            self._transmit(stamp, message)

    def send_control(
        self,
        stamp: Stamp,
        kind: Kind,
        a: int = 0,
        *,
        flags: int = 0,
        body: bytes = b"",
    ) -> bool:
        """Send a frame without payload; False when there is no connection."""
        with self._lock:
            return self._push((stamp.header(kind, a, flags=flags) + body,))

    def send_state(
        self,
        stamp: Stamp,
        kind: Kind,
        last_received: int = 0,
        credit: int = 0,
        flags: int = 0,
    ) -> None:
        """Send a BEAT or GOODBYE, with the number of the last message sent as `a`."""
        # The lock makes `a` true: no message can get between it and the frame.
        with self._lock:
            number = self._last_number
            self._push((stamp.header(kind, number, last_received, credit, flags),))

    def mark_delivered(self, number: int) -> None:
        """Drop the messages up to `number`, which the peer has."""
        with self._lock:
            if not self.delivered_number < number <= self._last_number:
                return
            self.delivered_number = number
            while self._unacknowledged and self._unacknowledged[0].number <= number:
                self._unacknowledged.popleft()

    def resend(self, stamp: Stamp, number: int) -> None:
        """Send all stored messages from `number` on again, in order.

        The receiver drops what it has, so sending too much does no harm.
        """
        with self._lock:
            for message in self._unacknowledged:
                if message.number >= number:
                    self._transmit(stamp, message)

    @property
    def is_delivered(self) -> bool:
        """Whether the peer has every message that was sent."""
        with self._lock:
            return self.delivered_number == self._last_number

    def close(self, linger: float) -> None:
        """Close the socket; queued frames may still be sent for `linger` seconds."""
        with self._lock:
            self._unacknowledged.clear()
            self._socket.close(linger=int(linger * 1000))

    def _transmit(self, stamp: Stamp, message: SentMessage) -> None:
        chunks = message.chunks
        total = sum(len(chunk) for chunk in chunks)
        first = len(chunks[0]) if chunks else 0
        if 0 < total <= INLINE:
            header = stamp.header(Kind.MESSAGE, message.number, total, 0, INLINED)
            self._push((b"".join((header, message.contents, *chunks)),))
            return
        first_part = (
            stamp.header(Kind.MESSAGE, message.number, total, first) + message.contents
        )
        if not self._push((first_part, *chunks[:1])):
            return
        offset = first
        for chunk in chunks[1:]:
            header = stamp.header(Kind.CHUNK, message.number, offset, len(chunk))
            if not self._push((header, chunk)):
                return
            offset += len(chunk)

    def _push(self, parts: Sequence[Chunk]) -> bool:
        """Hand one ZeroMQ message to the socket; False when there is no connection."""
        last = len(parts) - 1
        try:
            for i, part in enumerate(parts):
                more = zmq.SNDMORE if i < last else 0
                self._socket.send(part, zmq.NOBLOCK | more, copy=i == 0)
        except zmq.Again:
            return False
        return True
