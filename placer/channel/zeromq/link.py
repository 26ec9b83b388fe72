"""The connection to one peer: a PUSH socket, and the messages that may be resent.

A ZeroMQ socket must not be used by two threads at once. A lock around each use ensures
that, which is faster than passing messages to a thread that owns the socket. Sending
never blocks: the mailbox has applied the bound before, and the queue of the socket has
no limit. A frame that finds no connection is dropped: the peer asks for what it misses.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

import zmq

from placer.channel.payload import Chunk
from placer.channel.zeromq.frames import Kind, Parts, Stamp, message_frames

BUFFER: Final = 256 << 10
"""Bytes of the system's socket buffers. All addresses are on this machine: what is in
such small buffers stays in the cache, which saves a third of the CPU time of large
messages."""


class Link:
    """Sends to one peer; safe to use from many threads."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, stamp: Stamp
    ) -> None:
        self._stamp = stamp
        self._lock = threading.Lock()
        self._last_number = 0
        # The numbers and the frames of the messages that the peer may not have.
        self.unacknowledged: deque[tuple[int, Sequence[Parts]]] = deque()
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

    def send_message(self, contents: bytes, chunks: Sequence[Chunk]) -> None:
        """Send a message with the next number, and store it until the peer has it."""
        with self._lock:
            self._last_number += 1
            frames = message_frames(self._stamp, self._last_number, contents, chunks)
            self.unacknowledged.append((self._last_number, frames))
            self._push_all(frames)

    def send(
        self,
        kind: Kind,
        a: int | None = None,
        b: int = 0,
        c: int = 0,
        *,
        flags: int = 0,
        body: bytes = b"",
    ) -> bool:
        """Send a frame without payload; False when there is no connection.

        `a` is by default the number of the last message sent: no message can get
        between it and the frame.
        """
        with self._lock:
            number = self._last_number if a is None else a
            header = self._stamp.header(kind, number, b, c, flags)
            return self._push_all([(header + body,)])

    def mark_delivered(self, number: int) -> None:
        """Drop the messages up to `number`, which the peer has."""
        with self._lock:
            if number <= self._last_number:
                while self.unacknowledged and self.unacknowledged[0][0] <= number:
                    self.unacknowledged.popleft()

    def resend(self, first: int) -> None:
        """Send all stored messages from number `first` on again, in order.

        The receiver drops what it has, so sending too much does no harm.
        """
        with self._lock:
            for number, frames in self.unacknowledged:
                if number >= first:
                    self._push_all(frames)

    def close(self, linger: float) -> None:
        """Close the socket; queued frames may still be sent for `linger` seconds."""
        with self._lock:
            self.unacknowledged.clear()
            self._socket.close(linger=int(linger * 1000))

    def _push_all(self, frames: Iterable[Parts]) -> bool:
        """Hand frames to the socket; False, at the first, when there is no connection.

        Called with the lock held.
        """
        try:
            for parts in frames:
                # A copy is cheaper for a single part; pyzmq copies short parts anyway.
                self._socket.send_multipart(parts, zmq.NOBLOCK, copy=len(parts) == 1)
        except zmq.Again:
            return False
        return True
