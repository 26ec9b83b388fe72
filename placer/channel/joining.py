"""How the nodes of a run connect: one connection for each pair that exchanges messages.

Of two nodes, the one whose name sorts later connects: over a unix socket if the other
one listens on this machine, and else over TCP, with TLS if there is a key. Then

1. the listening node sends WELCOME, with a nonce. Under TLS the other one has been
   checked by then, and knows it by that;
2. the connecting node sends HELLO: who it is, with a nonce of its own;
3. the listening node answers with its HELLO, or says in REFUSAL why it does not;
4. the connecting node is connected, and sends BEAT. The listening node is connected only
   when that has come: the connection may have waited so long to be accepted that the
   other node gave it up and made another one.

With a key a HELLO has an authentication code of itself, of both nonces, and of the role of
its sender, so none can be forged or used again.

A TCP connection that breaks is opened again in the same way. The HELLOs say what each
side has received of the other one, which is final once the old connection has ended
there: so the listening node ends it before it answers.
"""

from __future__ import annotations

import errno
import hmac
import math
import os
import random
import secrets
import select
import socket
import ssl
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from msgspec.structs import replace

from placer.channel import frames, sockets
from placer.channel.endpoint import Endpoint
from placer.channel.frame_socket import FrameSocket
from placer.channel.frames import NONCE_BYTES, Frame, Hello, InvalidFrame, Refused
from placer.channel.keys import Key
from placer.channel.resolver import Resolver
from placer.memory.arena import Arena

if TYPE_CHECKING:  # the package cryptography takes long to import
    from placer.channel.tls import Identities, TlsStream

HELLO_TIMEOUT: Final = 5.0
"""Seconds that a new connection may take until its HELLO."""
MAX_PENDING: Final = 64
"""Connections without a HELLO at the same time at most."""
MAX_CONNECTING: Final = 16
"""Peers that a node connects to at the same time at most: so each handshake takes little
of `HELLO_TIMEOUT`, also where many nodes begin at once."""
MAX_RETRY: Final = 1.0
"""Seconds between two attempts to connect to a peer at most."""
LISTENER, CONNECTOR = "listener", "connector"


@dataclass(eq=False, slots=True)
class _Pending:
    """A connection that is not established yet; `until` is its deadline."""

    stream: socket.socket | TlsStream
    peer: str | None  # None until its HELLO, where it connected to us
    until: float
    framed: FrameSocket | None = None  # None until the handshake of TLS is done
    certified: str | None = None  # the node whose certificate it has
    nonce: bytes = b""  # ours
    other_nonce: bytes = b""  # of the listener, if we have connected
    hello: Hello | None = None  # of the peer
    answered: bool = False  # it connected to us, and we have answered its HELLO
    connects: bool = False  # we have connected to it

    def close(self) -> None:
        """Close the connection, and the files that came over it."""
        (self.framed or self.stream).close()


class _Attempt(NamedTuple):
    """A TCP connection that the system is making; `until` is its deadline."""

    peer: str
    connection: socket.socket
    until: float


class Peers(Protocol):
    """What a node knows of its peers, and says to them."""

    def needs_connection(self, peer: str) -> bool:
        """Whether there is no connection to a peer, and there should be one."""

    def is_remote(self, peer: str) -> bool:
        """Whether a peer was connected over TCP before."""

    def has_position(self, peer: str) -> bool:
        """Whether it is final what was received of a peer; ends its connection if there
        still is one."""

    def greet(self, peer: str) -> Hello:
        """Return the greeting for a peer, whose position is final."""

    def check(self, hello: Hello) -> None:
        """Raise Refused unless a greeting is of a peer of this run."""


class Established(NamedTuple):
    """A connection to a peer, which has sent this greeting."""

    peer: str
    socket: FrameSocket
    hello: Hello


@dataclass(eq=False)
class Joining:
    """Listens and connects for a node; only the session's thread uses it.

    Attributes:
        peers: what the node knows of its peers.
        endpoints: the addresses of the node and of its peers.
        bind: where the node listens.
        streams: the streams to use, of "unix" and "tcp".
        key: the key of the run, if it has one.
        identities: the certificates for TLS, None to do without.
        epoll: watches the sockets until they are established.
        refused: counts the connections that were refused.
        reasons: why a peer has not joined, by its name, as far as it is known.

    Raises RunError if the node cannot listen at its address.
    """

    node: str
    job: str
    peers: Peers
    endpoints: Mapping[str, Endpoint]
    bind: Endpoint
    streams: Collection[str]
    key: Key | None
    identities: Identities | None
    epoll: select.epoll
    arena: Arena
    refused: int = 0
    reasons: dict[str, str] = field(default_factory=dict)
    _listeners: dict[int, socket.socket] = field(default_factory=dict)
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _connecting: dict[int, _Attempt] = field(default_factory=dict)
    _attempts: dict[str, int] = field(default_factory=dict)
    _retry_at: dict[str, float] = field(default_factory=dict)
    _resolver: Resolver = field(default_factory=Resolver)

    def __post_init__(self) -> None:
        own = self.endpoints[self.node]
        listeners = []
        if "unix" in self.streams:
            listeners.append(sockets.listen_unix(self.node, self.job, own))
        if "tcp" in self.streams:
            try:
                listeners.append(sockets.listen_tcp(self.node, self.bind))
            except BaseException:
                for listener in listeners:
                    listener.close()
                raise
        self._listeners = {listener.fileno(): listener for listener in listeners}
        for fd in self._listeners:
            self.epoll.register(fd, select.EPOLLIN)

    # Connecting.

    def connect(self, now: float) -> None:
        """Connect to peers where this node is the one that connects, first to those that
        it has tried least recently."""
        for fd, attempt in [*self._connecting.items()]:
            if attempt.until < now:
                self._give_up(fd, "no answer from its machine")
        known = {p.peer for p in self._pending.values()}
        known |= {each.peer for each in self._connecting.values()}
        due = [
            (self._retry_at.get(peer, 0.0), peer)
            for peer in self.endpoints
            if peer < self.node and peer not in known
        ]
        for retry_at, peer in sorted(due):
            if retry_at > now or self._count_attempts() >= MAX_CONNECTING:
                return
            if not self.peers.needs_connection(peer):
                continue
            attempts = self._attempts[peer] = self._attempts.get(peer, 0) + 1
            pause = min(MAX_RETRY, 0.01 * 1.2 ** min(attempts, 30))
            self._retry_at[peer] = now + pause * random.uniform(0.5, 1.5)
            if not self._connect_unix(peer):
                self._connect_tcp(peer, self.endpoints[peer], attempts)

    def _count_attempts(self) -> int:
        """Return the number of peers that this node is connecting to."""
        begun = sum(pending.connects for pending in self._pending.values())
        return begun + len(self._connecting)

    def _connect_unix(self, peer: str) -> bool:
        """Connect over a unix socket; return whether the peer is on this machine."""
        if "unix" not in self.streams or self.peers.is_remote(peer):
            return False
        where = self.endpoints[peer]
        connection, is_busy = sockets.connect_unix(self.job, peer, where)
        if connection is not None:
            self._open(self._add_pending(connection, peer))
        elif "tcp" not in self.streams:
            self.reasons.setdefault(peer, "it does not listen")
        return is_busy or connection is not None

    def _connect_tcp(self, peer: str, where: Endpoint, attempt: int) -> None:
        if "tcp" not in self.streams:
            return
        addresses = self._resolver.addresses(*where)
        if isinstance(addresses, str):
            self.reasons[peer] = addresses
            self._retry_at[peer] = 0.0  # it is only looked up again from time to time
            return
        connection = sockets.connect_tcp(addresses[attempt % len(addresses)])
        if isinstance(connection, str):
            self.reasons[peer] = connection
            return
        self.reasons.setdefault(peer, "no answer from its machine")
        until = time.monotonic() + HELLO_TIMEOUT
        self._connecting[connection.fileno()] = _Attempt(peer, connection, until)
        self.epoll.register(connection, select.EPOLLOUT)

    def _on_connected(self, fd: int) -> None:
        peer, connection, _ = self._connecting[fd]
        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            what = os.strerror(error).lower()
            if error == errno.ECONNREFUSED:
                what = "its machine refuses the connection: the node does not listen"
            self._give_up(fd, what)
        elif self._connect_unix(peer):  # it listens on this machine since then
            self._give_up(fd, "")
        else:
            del self._connecting[fd]
            self.epoll.unregister(fd)
            self._begin(connection, peer)

    def _give_up(self, fd: int, why: str) -> None:
        """End an attempt to connect over TCP."""
        peer, connection, _ = self._connecting.pop(fd)
        self.epoll.unregister(fd)
        connection.close()
        if why:
            self.reasons[peer] = why

    # New connections.

    def on_event(self, fd: int) -> Established | None:
        """Handle a ready socket; return the connection that is established now."""
        if fd in self._listeners:
            self._accept(self._listeners[fd])
        elif fd in self._connecting:
            self._on_connected(fd)
        elif fd in self._pending:
            return self._advance(self._pending[fd])
        return None

    def on_tick(self, now: float) -> None:
        """Connect, answer the peers that wait for it, and refuse the connections that
        have not identified themselves in time."""
        self.connect(now)
        for pending in [*self._pending.values()]:
            if pending.until < now:
                self._refuse(pending, "it does not answer")
            elif pending.hello is not None and not pending.answered:
                self._answer(pending)

    def close(self, last: bytes) -> None:
        """Close all sockets.

        `last` is a frame, GOODBYE or ABORT, for connections that the other node may
        consider established: it would take the end of the socket for a loss.
        """
        self._resolver.close()
        for attempt in self._connecting.values():
            attempt.connection.close()
        for pending in self._pending.values():
            if pending.answered and pending.framed is not None:
                pending.framed.put(last)
                pending.framed.finish()
            pending.close()
        for listener in self._listeners.values():
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        connection = sockets.accept(listener)
        if connection is None:
            self.refused += 1
            return
        if len(self._pending) >= MAX_PENDING:
            unanswered = (p for p in self._pending.values() if not p.answered)
            oldest = next(iter(self._pending.values()))
            self._refuse(next(unanswered, oldest), "")
        self._begin(connection, None)

    def _begin(self, connection: socket.socket, peer: str | None) -> None:
        """Begin with a new connection, to `peer` or from an unknown node."""
        stream: socket.socket | TlsStream = connection
        if self.identities is not None and connection.family != socket.AF_UNIX:
            from placer.channel.tls import TlsStream

            client, server = self.identities.client, self.identities.server
            stream = TlsStream(connection, server if peer is None else client)
        pending = self._add_pending(stream, peer)
        if stream is connection:
            self._open(pending)
        else:
            self._advance(pending)

    def _add_pending(
        self, stream: socket.socket | TlsStream, peer: str | None
    ) -> _Pending:
        stream.setblocking(False)
        until = time.monotonic() + HELLO_TIMEOUT
        pending = _Pending(stream, peer, until, connects=peer is not None)
        self._pending[stream.fileno()] = pending
        self.epoll.register(stream.fileno(), select.EPOLLIN)
        return pending

    def _refuse(self, pending: _Pending, why: str, *, tell: bool = False) -> None:
        """Close a connection and count it as refused; `why` is for the errors of this
        node, and with `tell` for the other one."""
        self.refused += 1
        if pending.peer is not None and why:
            self.reasons[pending.peer] = why
        if tell and pending.framed is not None:
            pending.framed.put(frames.encode(frames.Refusal(why)))
            pending.framed.finish()
        del self._pending[pending.stream.fileno()]
        pending.close()

    def _advance(self, pending: _Pending) -> Established | None:
        """Do the next part of the protocol with a connection, if it has come."""
        if pending.framed is None and not self._shake_hands(pending):
            return None
        framed = pending.framed
        assert framed is not None
        try:
            framed.receive()
            arrived = framed.next()
            if arrived is not None:
                return self._on_frame(arrived[0], pending)
            if framed.ended:
                self._refuse(pending, _end(framed.error))
        except Refused as why:
            self._refuse(pending, str(why), tell=not pending.connects)
        except InvalidFrame:
            self._refuse(pending, "it does not speak this protocol")
        return None

    def _shake_hands(self, pending: _Pending) -> bool:
        """Advance the handshake of TLS; return whether the connection can be used."""
        from placer.channel.tls import TlsStream

        stream = pending.stream
        assert isinstance(stream, TlsStream)
        assert self.identities is not None
        try:
            event = stream.handshake()
        except OSError as error:
            self._refuse(pending, _end(error))
            return False
        if event:
            self.epoll.modify(stream.fileno(), event)
            return False
        self.epoll.modify(stream.fileno(), select.EPOLLIN)
        pending.certified = self.identities.node_of(stream)
        if pending.certified is None or pending.peer not in (None, pending.certified):
            self._refuse(pending, "another node answers at its address")
            return False
        self._open(pending)
        return True

    def _open(self, pending: _Pending) -> None:
        """Begin with frames: the listening node speaks first."""
        pending.framed = FrameSocket(pending.stream, self.arena)
        pending.nonce = secrets.token_bytes(NONCE_BYTES)
        if not pending.connects:
            pending.framed.put(frames.encode(frames.Welcome(pending.nonce)))

    def _on_frame(self, frame: Frame, pending: _Pending) -> Established | None:
        framed = pending.framed
        assert framed is not None
        if pending.connects and isinstance(frame, frames.Refusal):
            raise Refused(f"it refuses this node: {frame.why[:200]}")
        if pending.connects and not pending.other_nonce:
            if not isinstance(frame, frames.Welcome):
                raise InvalidFrame("kind")
            pending.other_nonce = frame.nonce
            self._send_hello(pending)
            return None
        if pending.answered:
            if not isinstance(frame, frames.Beat):
                raise InvalidFrame("kind")
        else:
            if not isinstance(frame, Hello):
                raise InvalidFrame("kind")
            self._check(frame, pending)
            pending.hello = frame
            if not pending.connects:
                pending.peer = frame.identity.node
                self._answer(pending)
                return None
        assert pending.hello is not None
        assert pending.peer is not None
        del self._pending[framed.fd]
        self.epoll.unregister(framed.fd)
        self.reasons.pop(pending.peer, None)
        self._attempts.pop(pending.peer, None)
        return Established(pending.peer, framed, pending.hello)

    def _check(self, hello: Hello, pending: _Pending) -> None:
        """Raise Refused unless a greeting is of a peer of this run: the expected one if
        this node has connected to it, and one that has no other connection."""
        node = hello.identity.node
        if self.key is not None:
            role = LISTENER if pending.connects else CONNECTOR
            code = self._code(role, hello, pending)
            if not hmac.compare_digest(code, hello.mac):
                raise Refused("it has another key")
        may_connect = not pending.connects and node > self.node
        if not (may_connect or node == pending.peer) or node not in self.endpoints:
            raise Refused("it is no neighbour")
        if pending.certified not in (None, node):
            raise Refused("it has the certificate of another node")
        self.peers.check(hello)
        others = {p.peer for p in self._pending.values() if p is not pending}
        if node in others:
            raise Refused("it has another connection")

    def _send_hello(self, pending: _Pending) -> None:
        assert pending.framed is not None
        assert pending.peer is not None
        hello = replace(self.peers.greet(pending.peer), nonce=pending.nonce)
        if self.key is not None:
            role = CONNECTOR if pending.connects else LISTENER
            hello = replace(hello, mac=self._code(role, hello, pending))
        pending.framed.put(frames.encode(hello))

    def _code(self, role: str, hello: Hello, pending: _Pending) -> bytes:
        """Return the authentication code of a greeting of the sender with this role."""
        assert self.key is not None
        listener, connector = pending.other_nonce, pending.nonce
        if not pending.connects:
            listener = pending.nonce
            connector = (pending.hello or hello).nonce
        message = frames.to_msgpack(
            [role, listener, connector, replace(hello, mac=b"")]
        )
        return hmac.digest(self.key.derive("hello"), message, sha256)

    def _answer(self, pending: _Pending) -> None:
        """Answer the HELLO of a peer, once our position is final."""
        assert pending.peer is not None
        if not self.peers.has_position(pending.peer):
            return
        self._send_hello(pending)
        # From here on the peer may consider this connection established, and would take
        # its end for the loss of this node. So there is no deadline: only the peer
        # itself ends it.
        pending.answered, pending.until = True, math.inf


def _end(error: OSError | None) -> str:
    """Return why the other side may have ended a new connection."""
    if isinstance(error, ssl.SSLError):
        from placer.channel.tls import refusal

        return refusal(error)
    return "it closes the connection"
