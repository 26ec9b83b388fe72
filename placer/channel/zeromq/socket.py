"""The PULL socket of a node, on which the frames of all peers arrive."""

from __future__ import annotations

from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from placer.channel.frame_bodies import InvalidFrame
from placer.channel.payload import CHUNK
from placer.channel.zeromq import frames
from placer.channel.zeromq.link import BUFFER
from placer.channel.zeromq.receiver import PartialMessage

WAKE: Final = "inproc://wake"


class ReceiveSocket:
    """A PULL socket bound to `endpoint`; one thread uses it, except for `wake`.

    Raises ZMQError if the port is in use.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._context = context
        self._timeout = -1.0
        self._socket = socket = context.socket(zmq.PULL)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, frames.MAX_FRAME)
        socket.setsockopt(zmq.RCVBUF, BUFFER)
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        try:
            socket.bind(endpoint)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        socket.bind(WAKE)
        failures = (
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self._monitor = socket.get_monitor_socket(failures)

    def receive_first(self, timeout: float) -> bytes | None:
        """Return the first part of the next ZeroMQ message; None if none comes within
        `timeout` seconds."""
        if timeout != self._timeout:
            self._timeout = timeout
            self._socket.setsockopt(zmq.RCVTIMEO, max(1, int(timeout * 1000)))
        try:
            return self._socket.recv()
        except zmq.Again:
            return None

    def receive_piece(self, partial: PartialMessage, length: int) -> None:
        """Receive the second part, of `length` bytes, into a message.

        Raises InvalidFrame when there is no such part.
        """
        room = min(CHUNK, partial.total - partial.filled)
        if not 0 < length <= room or not self._socket.get(zmq.RCVMORE):
            raise InvalidFrame("piece")
        views = partial.next_views(length)
        if len(views) == 1:
            if self._socket.recv_into(views[0].data) != length:
                raise InvalidFrame("length")
            return
        piece = self._socket.recv()
        if len(piece) != length:
            raise InvalidFrame("length")
        partial.scatter(piece)

    def drop_rest(self) -> None:
        """Receive and drop the remaining parts of the ZeroMQ message."""
        while self._socket.get(zmq.RCVMORE):
            self._socket.recv()

    def count_rejected(self) -> int:
        """Return how many connections failed ZeroMQ's handshake since the last call."""
        count = 0
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            count += 1
        return count

    def wake(self) -> None:
        """End a wait in `receive_first`; safe to call from any thread."""
        with self._context.socket(zmq.PUSH) as wake_socket:
            wake_socket.connect(WAKE)
            wake_socket.send(b"")

    def close(self) -> None:
        """Close the socket and its monitor."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)
