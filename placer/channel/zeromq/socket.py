"""The socket that everything arrives on at a node: bound, read by one thread."""

from __future__ import annotations

from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from placer.channel.payload import CHUNK
from placer.channel.wire_bodies import Refused
from placer.channel.zeromq import wire
from placer.channel.zeromq.link import BUFFER
from placer.channel.zeromq.receiver import Partial
from placer.errors import RunError

WAKE: Final = "inproc://wake"


class Inlet:
    """A PULL socket at `endpoint`; RunError, with `text` for it, if that is taken."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, who: str
    ) -> None:
        self._context = context
        self._monitor: zmq.Socket[bytes] | None = None
        self._socket = socket = context.socket(zmq.PULL)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME)
        socket.setsockopt(zmq.RCVBUF, BUFFER)
        socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            socket.close(linger=0)
            if error.errno == zmq.EADDRINUSE:
                raise RunError(
                    f"{who}: the port is in use",
                    hint="another run may still be going; end it or choose another port",
                ) from None
            raise RunError(f"{who}: {error}") from None
        socket.bind(WAKE)
        failures = (
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self._monitor = socket.get_monitor_socket(failures)

    def listen_for(self, seconds: float) -> None:
        """How long `first` waits from now on."""
        self._socket.setsockopt(zmq.RCVTIMEO, max(1, int(seconds * 1000)))

    def first(self) -> bytes | None:
        """The first part of the next message; None when none came."""
        try:
            return self._socket.recv()
        except zmq.Again:
            return None

    def piece(self, partial: Partial, length: int) -> None:
        """Receive the second part, `length` bytes, to where they go in a message."""
        room = min(CHUNK, partial.total - partial.filled)
        if not 0 < length <= room or not self._socket.get(zmq.RCVMORE):
            raise Refused("piece")
        window = partial.window(length)
        if window is not None:
            if self._socket.recv_into(window.data) != length:
                raise Refused("length")
            return
        piece = self._socket.recv()
        if len(piece) != length:
            raise Refused("length")
        partial.scatter(piece)

    def drop_rest(self) -> None:
        """Receive what is left of the message, for nobody."""
        while self._socket.get(zmq.RCVMORE):
            self._socket.recv()

    def strangers(self) -> int:
        """Connections turned away since the last time: they did not speak ZeroMQ."""
        assert self._monitor is not None
        count = 0
        while self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            count += 1
        return count

    def wake(self) -> zmq.Socket[bytes]:
        """End a wait in `first`; the socket to close once it has ended."""
        waker = self._context.socket(zmq.PUSH)
        waker.connect(WAKE)
        waker.send(b"")
        return waker

    def close(self) -> None:
        """Close the socket and its monitor."""
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        self._socket.close(linger=0)
