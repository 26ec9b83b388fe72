"""How the nodes of a run connect: one TCP connection for each pair.

Of two nodes, the one whose name sorts later connects. Both send HELLO, the connecting
node first. That node is connected when it gets the answer. The listening node is
connected only when a BEAT follows, which shows that the answer was received: the
connection may have waited so long to be accepted that the other node gave it up and made
another one.

A connection that breaks is opened again in the same way. The HELLOs say what each side
has received of the other one, which is final once the old connection has ended there:
so the listening node ends it before it answers.
"""

from __future__ import annotations

import errno
import math
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from placer.channel.endpoint import listen_error
from placer.channel.frame_bodies import InvalidFrame
from placer.channel.tcp import frames
from placer.channel.tcp.frame_socket import FrameSocket
from placer.channel.tcp.frames import Greeting, Kind
from placer.memory.arena import Arena

HELLO_TIMEOUT: Final = 5.0
"""Seconds that a new connection may take until its HELLO."""
MAX_PENDING: Final = 64
"""Connections without a HELLO at the same time at most."""
Endpoint = tuple[str, int]
"""A literal address and a port."""


@dataclass(slots=True)
class _Pending:
    """A connection that is not established yet; `until` is its deadline."""

    framed: FrameSocket
    peer: str | None  # None until its HELLO, where it connected to us
    until: float
    greeting: Greeting | None = None  # of the peer
    answered: bool = False  # it connected to us, and we have answered its HELLO


class Peers(Protocol):
    """What a node knows of its peers, and says to them."""

    def needs_connection(self, peer: str) -> bool:
        """Whether there is no connection to a peer, and there should be one."""

    def has_position(self, peer: str) -> bool:
        """Whether it is final what was received of a peer; ends its connection if there
        still is one."""

    def greet(self, peer: str) -> Greeting:
        """Return the greeting for a peer, whose position is final."""

    def check(self, greeting: Greeting) -> None:
        """Raise InvalidFrame unless a greeting is of a peer of this run."""


class Established(NamedTuple):
    """A connection to a peer, which has sent this greeting."""

    peer: str
    socket: FrameSocket
    greeting: Greeting


@dataclass(eq=False)
class Joining:
    """Listens and connects for a node; only the session's thread uses it.

    `epoll` watches the sockets, also those of established connections; the owner closes
    it. `wake` ends waits for frames.
    `refused` counts the connections that were refused. Raises RunError if the node
    cannot listen at its address.
    """

    node: str
    endpoints: Mapping[str, Endpoint]
    peers: Peers
    wake: int
    arena: Arena
    refused: int = 0
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _connecting: dict[int, tuple[str, socket.socket]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = self.endpoints[self.node]
        self._listener = _new_socket(where)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.epoll = select.epoll()
        try:
            self._listener.bind(where)
            self._listener.listen(MAX_PENDING)
        except OSError as error:
            self.epoll.close()
            self._listener.close()
            raise listen_error(self.node, f"{where[0]}:{where[1]}", error) from None
        self.epoll.register(self._listener, select.EPOLLIN)

    def connect(self) -> None:
        """Connect to peers where this node is the one that connects."""
        known = {p.peer for p in self._pending.values()}
        known |= {peer for peer, _ in self._connecting.values()}
        for peer, where in self.endpoints.items():
            if peer >= self.node or peer in known:
                continue
            if not self.peers.needs_connection(peer):
                continue
            connection = _new_socket(where)
            error = connection.connect_ex(where)
            if error in (0, errno.EINPROGRESS):
                self._connecting[connection.fileno()] = peer, connection
                self.epoll.register(connection, select.EPOLLOUT)
            else:
                connection.close()

    def on_event(self, fd: int) -> Established | None:
        """Handle a ready socket; return the connection that is established now."""
        if fd == self._listener.fileno():
            self._accept()
        elif fd in self._connecting:
            self._on_connected(fd)
        elif fd in self._pending:
            return self._read_pending(self._pending[fd])
        return None

    def on_tick(self, now: float) -> None:
        """Connect, answer the peers that wait for it, and refuse the connections that
        have not identified themselves in time."""
        self.connect()
        for pending in [*self._pending.values()]:
            if pending.until < now:
                self._refuse(pending)
            elif pending.greeting is not None and not pending.answered:
                self._answer(pending)

    def close(self, last: bytes) -> None:
        """Close all sockets.

        `last` is a frame, GOODBYE or ABORT, for connections that the other node may
        consider established: it would take the end of the socket for a loss.
        """
        for _, connection in self._connecting.values():
            connection.close()
        for pending in self._pending.values():
            if pending.answered:
                pending.framed.put(last)
                pending.framed.finish()
            pending.framed.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the other side has closed it already
        if len(self._pending) >= MAX_PENDING:
            oldest = next(iter(self._pending.values()))
            self._refuse(oldest)
        self._add_pending(connection, None)

    def _on_connected(self, fd: int) -> None:
        peer, connection = self._connecting.pop(fd)
        self.epoll.unregister(fd)
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            connection.close()  # it does not listen yet
        else:
            self._send_hello(self._add_pending(connection, peer), peer)

    def _add_pending(self, connection: socket.socket, peer: str | None) -> _Pending:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        framed = FrameSocket(connection, self.wake, self.arena)
        until = time.monotonic() + HELLO_TIMEOUT
        pending = self._pending[framed.fd] = _Pending(framed, peer, until)
        self.epoll.register(framed.fd, select.EPOLLIN)
        return pending

    def _refuse(self, pending: _Pending) -> None:
        """Close a connection and count it as refused."""
        self.refused += 1
        del self._pending[pending.framed.fd]
        pending.framed.close()

    def _send_hello(self, pending: _Pending, peer: str) -> None:
        pending.framed.put(frames.greeting_frame(self.peers.greet(peer)))

    def _answer(self, pending: _Pending) -> None:
        """Answer the HELLO of a peer, once our position is final."""
        assert pending.peer is not None
        if not self.peers.has_position(pending.peer):
            return
        self._send_hello(pending, pending.peer)
        # From here on the peer may consider this connection established, and would take
        # its end for the loss of this node. So there is no deadline: only the peer
        # itself ends it.
        pending.answered, pending.until = True, math.inf

    def _read_pending(self, pending: _Pending) -> Established | None:
        try:
            frame = pending.framed.get(0)
            if frame is None and not pending.framed.ended:
                return None
            if frame is None:
                raise InvalidFrame("its end")
            kind = Kind.BEAT if pending.answered else Kind.HELLO
            if frame.header.kind is not kind:
                raise InvalidFrame("kind")
            if not pending.answered:
                greeting = frames.read_greeting(frame.header, frame.body)
                self._check(greeting, pending)
        except InvalidFrame:
            self._refuse(pending)
            return None
        if pending.peer is None:
            pending.peer, pending.greeting = greeting.hello.node, greeting
            self._answer(pending)
            return None
        if not pending.answered:
            pending.greeting = greeting
        assert pending.greeting is not None
        del self._pending[pending.framed.fd]
        pending.framed.trust()
        return Established(pending.peer, pending.framed, pending.greeting)

    def _check(self, greeting: Greeting, pending: _Pending) -> None:
        """Raise InvalidFrame unless a greeting is of a peer of this run, the expected one
        if this node has connected to it, and that has no other connection."""
        self.peers.check(greeting)
        node = greeting.hello.node
        may_connect = pending.peer is None and node > self.node
        if not (may_connect or node == pending.peer) or node not in self.endpoints:
            raise InvalidFrame("node")
        others = {p.peer for p in self._pending.values() if p is not pending}
        if node in others:
            raise InvalidFrame("name")


def _new_socket(where: Endpoint) -> socket.socket:
    family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    result = socket.socket(family, socket.SOCK_STREAM)
    result.setblocking(False)
    return result
