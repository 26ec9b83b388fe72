"""How the nodes of a run find each other and connect: one unix socket for each pair.

Every node listens at an abstract address that is computed from the job, the node and
its port, so there is nothing in the file system. Of two nodes, the one whose name sorts
later connects. Both check that the other process belongs to the same user, then both
send HELLO, the connecting node first. That node is connected when it gets the answer.
The listening node is connected only when a BEAT follows, which shows that the answer
was received: the connection may have waited so long to be accepted that the other node
gave it up and made another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from placer.channel import frame_bodies
from placer.channel.endpoint import listen_error
from placer.channel.frame_bodies import Hello, InvalidFrame
from placer.channel.shared import frames
from placer.channel.shared.frames import Kind

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
HELLO_TIMEOUT: Final = 5.0
"""Seconds that a new connection may take until its HELLO."""
MAX_PENDING: Final = 64
"""Connections without a HELLO at the same time at most."""


@dataclass(slots=True)
class _Pending:
    """A connection that is not established yet; `until` is its deadline."""

    connection: socket.socket
    peer: str | None  # None until its HELLO, where it connected to us
    until: float
    answered: bool = False  # it connected to us, and we have answered its HELLO


@dataclass(eq=False)
class Rendezvous:
    """Listens and connects for a node; only the session's thread uses it.

    `hello(sender, receiver)` returns the HELLO from one node to another; `connected`
    are the peers whose connections were returned. `epoll` watches the sockets, also
    those of established connections; the owner closes it. `refused` counts the
    connections that were refused. Raises RunError when a process listens as this node
    already.
    """

    node: str
    endpoints: Mapping[str, str]
    job: str
    hello: Callable[[str, str], Hello]
    connected: Collection[str]
    refused: int = 0
    _pending: dict[int, _Pending] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = self.endpoints[self.node]
        self._listener = _new_socket()
        self.epoll = select.epoll()
        try:
            self._listener.bind(address(self.job, self.node, where))
        except OSError as error:
            self.epoll.close()
            self._listener.close()
            raise listen_error(self.node, where, error) from None
        self._listener.listen(MAX_PENDING)
        self.epoll.register(self._listener, select.EPOLLIN)

    def connect(self) -> None:
        """Connect to peers that listen, where this node is the one that connects."""
        known = {*self.connected, *(p.peer for p in self._pending.values())}
        for peer in self.endpoints:
            if peer >= self.node or peer in known:
                continue
            connection = _new_socket()
            there = address(self.job, peer, self.endpoints[peer])
            if connection.connect_ex(there):
                connection.close()  # it does not listen yet
            elif _is_same_user(connection):
                self._add_pending(connection, peer)
                self._send_hello(connection, peer)
            else:
                self._refuse(connection)

    def on_event(self, fd: int) -> tuple[str, socket.socket] | None:
        """Handle a readable socket; return the peer and the connection to it if that is
        established now."""
        if fd == self._listener.fileno():
            self._accept()
            return None
        pending = self._pending.get(fd)
        return None if pending is None else self._read_pending(pending)

    def expire(self, now: float) -> None:
        """Refuse the connections that have not identified themselves in time."""
        for pending in [p for p in self._pending.values() if p.until < now]:
            self._refuse(pending.connection)

    def close(self, last: bytes) -> None:
        """Close all sockets.

        `last` is a frame, GOODBYE or ABORT, for connections that the other node may
        consider established: it would take the end of the socket for a loss.
        """
        for pending in self._pending.values():
            if pending.answered:
                with contextlib.suppress(OSError):
                    pending.connection.send(last)
            pending.connection.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the other side has closed it already
        connection.setblocking(False)
        if _is_same_user(connection) and len(self._pending) < MAX_PENDING:
            self._add_pending(connection, None)
        else:
            self._refuse(connection)

    def _add_pending(self, connection: socket.socket, peer: str | None) -> None:
        until = time.monotonic() + HELLO_TIMEOUT
        self._pending[connection.fileno()] = _Pending(connection, peer, until)
        self.epoll.register(connection, select.EPOLLIN)

    def _refuse(self, connection: socket.socket) -> None:
        """Close a connection and count it as refused."""
        self.refused += 1
        self._pending.pop(connection.fileno(), None)
        connection.close()

    def _send_hello(self, connection: socket.socket, peer: str) -> None:
        hello = frame_bodies.encode(self.hello(self.node, peer))
        # If the peer has gone, the next read finds out.
        with contextlib.suppress(OSError):
            connection.send(frames.frame(Kind.HELLO, body=hello))

    def _read_pending(self, pending: _Pending) -> tuple[str, socket.socket] | None:
        connection = pending.connection
        try:
            data = memoryview(connection.recv(frames.MAX_FRAME + 1))
            kind, *_ = frames.read_header(data)
            if kind is not (Kind.BEAT if pending.answered else Kind.HELLO):
                raise InvalidFrame("kind")
            if not pending.answered:
                name = self._check_hello(data, pending)
        except BlockingIOError:
            return None
        except (OSError, InvalidFrame):
            self._refuse(connection)
            return None
        if pending.peer is None:
            self._send_hello(connection, name)
            # From here on the peer may consider this connection established, and would
            # take its end for the loss of this node. So there is no deadline: only the
            # peer itself ends it.
            pending.peer, pending.answered, pending.until = name, True, math.inf
            return None
        del self._pending[connection.fileno()]
        return pending.peer, connection

    def _check_hello(self, data: memoryview[int], pending: _Pending) -> str:
        """Return the node that sent a HELLO.

        Raises InvalidFrame unless that is a peer of this run, the expected one if this
        node has connected to it, and has no other connection.
        """
        hello = frame_bodies.read_hello(data[frames.HEADER.size :])
        if hello != self.hello(hello.node, self.node):
            raise InvalidFrame("hello")
        may_connect = pending.peer is None and hello.node > self.node
        is_expected = may_connect or hello.node == pending.peer
        if hello.node not in hello.nodes or not is_expected:
            raise InvalidFrame("node")
        others = {p.peer for p in self._pending.values() if p is not pending}
        if hello.node in {*others, *self.connected}:
            raise InvalidFrame("name")
        return hello.node


def address(job: str, node: str, endpoint: str) -> bytes:
    """Return the abstract address of a node.

    It cannot be guessed by a process that does not know the name of the job.
    """
    port = endpoint.rpartition(":")[2]
    text = "\0".join((job, node, port))
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"\0placer/{os.geteuid()}/{digest}".encode()


def _new_socket() -> socket.socket:
    result = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    result.setblocking(False)
    return result


def _is_same_user(connection: socket.socket) -> bool:
    size = _CREDENTIALS.size
    option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return bool(_CREDENTIALS.unpack(option)[1] == os.geteuid())
