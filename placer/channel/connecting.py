"""How the nodes of a run connect: one connection for each pair that exchanges messages.

Of two nodes, the node whose name sorts later connects. It uses a unix socket if the other node
listens on the same machine. Otherwise it uses TCP, with TLS if the run has a key. Then

1. the listening node sends WELCOME with a nonce. Under TLS, it has checked the certificate of
   the connecting node before;
2. the connecting node sends HELLO with its identity and its own nonce;
3. the listening node answers with its HELLO, which may refuse the connection. To a HELLO that is
   not from this run it answers with REFUSAL and a reason;
4. the connecting node is connected, and sends BEAT. The listening node is connected only when
   BEAT arrives: the connection may have waited so long to be accepted that the other node gave
   up and opened a new one.

With a key, a HELLO has an authentication code. The code covers the sender, the receiver and both
nonces, so a HELLO cannot be forged or replayed.

A broken TCP connection is opened again in the same way. The HELLOs report what each side has
received. This is final only when the old connection has ended, so the listening node ends the old
connection before it answers. A node that wants to close also connects to peers that would
normally connect to it: their GOODBYE may have been lost with the connection.
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
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec.structs import replace

from placer.channel import frames, sockets
from placer.channel.admission import admit, check_run
from placer.channel.endpoint import Endpoint
from placer.channel.frame_socket import FrameSocket
from placer.channel.frames import Frame, Hello, InvalidFrame, Refused
from placer.channel.keys import RunKey
from placer.channel.resolver import Resolver

if TYPE_CHECKING:  # the package cryptography is slow to import
    from placer.channel.link import Link
    from placer.channel.session import Session
    from placer.channel.tls import Identities, TlsStream

HELLO_TIMEOUT: Final = 5.0
"""Seconds within which a new connection must send its HELLO."""
MAX_PENDING: Final = 64
"""The largest number of accepted connections that have not sent HELLO yet."""
MAX_CONNECTING: Final = 16
"""The largest number of peers to connect to at once. It keeps each handshake much shorter than
`HELLO_TIMEOUT`, even if many nodes start at once."""
MAX_RETRY: Final = 0.25
"""The longest pause between two attempts to connect to a peer, in seconds. It is short, because a
run waits for a process that was restarted."""
Kind = TypeVar("Kind", bound=Frame)
Result = TypeVar("Result")
Steps = Generator[int, None, Result]
"""Advances a connection as far as possible. Then it yields the socket event to wait for, or 0 to
wait for the next tick."""


class JoinError(Exception):
    """A connection cannot be established; the text is the reason, if known."""


@dataclass(eq=False, slots=True)
class _Pending:
    """A connection that is not established yet."""

    fd: int
    stream: socket.socket | TlsStream
    peer: str | None  # None for an accepted connection before its HELLO
    until: float  # deadline, in monotonic seconds
    is_open: bool  # the system has connected the socket
    connects: bool  # this node opened the connection
    event: int = 0  # the socket event that `steps` waits for
    steps: Steps[Hello] = field(init=False)
    framed: FrameSocket | None = None  # None before the TLS handshake is done
    answered: bool = False  # this node has answered the HELLO of an accepted connection

    def close(self) -> None:
        self.steps.close()
        (self.framed or self.stream).close()


@dataclass(eq=False)
class Joining:
    """Listens and connects for a node; only the session's thread uses it.

    Attributes:
        session: serves the peers, and knows the messages received from each.
        job: the name of the run.
        endpoints: the addresses of the nodes.
        bind: the address to listen at.
        streams: the streams to use, of "unix" and "tcp".
        key: the key of the run, if it has one.
        identities: the certificates for TLS; None without TLS.
        epoll: watches the sockets until they are established.
        refused: the number of refused connections.

    Raises RunError if the node cannot listen at its address.
    """

    session: Session
    job: str
    endpoints: Mapping[str, Endpoint]
    bind: Endpoint
    streams: Collection[str]
    key: RunKey | None
    identities: Identities | None
    epoll: select.epoll
    refused: int = 0
    _listeners: dict[int, socket.socket] = field(default_factory=dict)
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _resolver: Resolver = field(default_factory=Resolver)

    def __post_init__(self) -> None:
        own = self.endpoints[self.session.node]
        listeners = []
        if "unix" in self.streams:
            listeners.append(sockets.listen_unix(self.session.node, self.job, own))
        if "tcp" in self.streams:
            try:
                listeners.append(sockets.listen_tcp(self.session.node, self.bind))
            except BaseException:
                for listener in listeners:
                    listener.close()
                raise
        self._listeners = {listener.fileno(): listener for listener in listeners}
        for fd in self._listeners:
            self.epoll.register(fd, select.EPOLLIN)

    # Connecting.

    def connect(self, now: float) -> None:
        """Connect to the peers that this node must dial, least recently tried first."""
        known = {pending.peer for pending in self._pending.values()}
        links = self.session.links.values()
        due = [link for link in links if self._tries(link) and link.peer not in known]
        for link in sorted(due, key=lambda link: (link.retry_at, link.peer)):
            connecting = sum(pending.connects for pending in self._pending.values())
            if link.retry_at > now or connecting >= MAX_CONNECTING:
                return
            link.attempts += 1
            pause = min(MAX_RETRY, 0.01 * 1.2 ** min(link.attempts, 30))
            link.retry_at = now + pause * random.uniform(0.5, 1.0)
            if not self._connect_unix(link) and "tcp" in self.streams:
                self._connect_tcp(link, self.endpoints[link.peer])

    def _tries(self, link: Link) -> bool:
        """Return True if this node should connect to a peer now."""
        session, seconds = self.session, self.session.second_since
        dials = link.peer < session.node or session.is_closing
        # A process that is refused as a second one leaves the other peers to the first one.
        return dials and link.needs_connection and (not seconds or link.peer in seconds)

    def _connect_unix(self, link: Link) -> bool:
        """Connect over a unix socket, unless the first connection used TCP. Returns
        True if the peer is on this machine."""
        if "unix" not in self.streams or link.is_joined:
            return False
        where = self.endpoints[link.peer]
        connection, is_busy = sockets.connect_unix(self.job, link.peer, where)
        if connection is not None:
            self._begin(connection, link.peer)
        elif "tcp" not in self.streams:
            link.reason = link.reason or "the peer does not listen"
        return is_busy or connection is not None

    def _connect_tcp(self, link: Link, where: Endpoint) -> None:
        addresses = self._resolver.addresses(*where)
        if isinstance(addresses, str):
            link.reason = addresses
            link.retry_at = 0.0  # the resolver limits the rate of lookups
            return
        connection = sockets.connect_tcp(addresses[link.attempts % len(addresses)])
        if isinstance(connection, str):
            link.reason = connection
            return
        link.reason = link.reason or "no answer from the machine"
        self._begin(connection, link.peer, is_open=False)

    # New connections.

    @property
    def is_waiting(self) -> bool:
        """Whether the next tick has work to do."""
        waiting = (not pending.event for pending in self._pending.values())
        return any(waiting) or any(map(self._tries, self.session.links.values()))

    def on_event(self, fd: int) -> None:
        if fd in self._listeners:
            self._accept(self._listeners[fd])
        elif fd in self._pending:
            self._advance(self._pending[fd])

    def on_tick(self, now: float) -> None:
        """Answer waiting peers, give up connections that are too slow, and connect."""
        for pending in [*self._pending.values()]:
            if pending.until < now:
                is_open = pending.is_open
                why = (
                    "the peer does not answer"
                    if is_open
                    else "no answer from the machine"
                )
                self._give_up(pending, why)
            elif not pending.event:
                self._advance(pending)
        self.connect(now)

    def close(self, last: bytes) -> None:
        """Close all sockets. `last` is a frame, GOODBYE or ABORT. It goes to peers that
        may consider their connection established and would take the end of the socket
        for a lost node."""
        for pending in self._pending.values():
            if pending.answered and pending.framed is not None:
                pending.framed.put(last)
                pending.framed.finish()
            pending.close()
        for listener in self._listeners.values():
            listener.close()
        self._resolver.close()  # last, because a lookup may take long

    def _accept(self, listener: socket.socket) -> None:
        connection = sockets.accept(listener)
        if connection is None:
            self.refused += 1
            return
        accepted = [each for each in self._pending.values() if not each.connects]
        if len(accepted) >= MAX_PENDING:
            unanswered = (each for each in accepted if not each.answered)
            self._give_up(next(unanswered, accepted[0]), "")
        self._begin(connection, None)

    def _begin(
        self, connection: socket.socket, peer: str | None, *, is_open: bool = True
    ) -> None:
        fd, until = connection.fileno(), time.monotonic() + HELLO_TIMEOUT
        pending = _Pending(fd, connection, peer, until, is_open, peer is not None)
        pending.steps = self._establish(pending)
        self._pending[fd] = pending
        self.epoll.register(fd, 0)
        self._advance(pending)

    def _advance(self, pending: _Pending) -> None:
        try:
            pending.event = next(pending.steps)
        except StopIteration as done:
            assert pending.peer is not None
            assert pending.framed is not None
            del self._pending[pending.fd]
            self.epoll.unregister(pending.fd)
            self.session.connected(pending.peer, pending.framed, done.value)
            self.connect(time.monotonic())  # another peer may connect now
        except Refused as why:
            if pending.framed is not None and not pending.connects:
                refusal = frames.Refusal(frames.as_text(str(why)))
                pending.framed.put(frames.encode(refusal))
                pending.framed.finish()
            self._give_up(pending, str(why))
        except InvalidFrame:
            self._give_up(pending, "the peer uses another protocol")
        except JoinError as why:
            self._give_up(pending, str(why))
        else:
            self.epoll.modify(pending.fd, pending.event)

    def _give_up(self, pending: _Pending, why: str) -> None:
        """Close a connection; `why` is the reason for the errors of this node. A
        connection that was open counts as refused."""
        self.refused += pending.is_open
        if pending.peer is not None and why:
            self.session.links[pending.peer].reason = why
        del self._pending[pending.fd]
        pending.close()

    # The steps of a connection; each raises Refused, InvalidFrame or JoinError.

    def _establish(self, pending: _Pending) -> Steps[Hello]:
        """Take a connection through the protocol; return the HELLO of the peer."""
        if not pending.is_open:
            yield from self._wait_until_open(pending)
        certified = None  # the node named by the certificate
        if self.identities is not None and pending.stream.family != socket.AF_UNIX:
            certified = yield from self._shake_hands(pending, self.identities)
        framed = pending.framed = FrameSocket(pending.stream, self.session.arena)
        nonce = secrets.token_bytes(frames.NONCE_BYTES)
        if pending.peer is not None:
            welcome = yield from _next_frame(framed, frames.Welcome)
            nonces = welcome.nonce, nonce
            own = self.session.greet(pending.peer, nonce)
            framed.put(frames.encode(self._sign(own, nonces)))
            hello = yield from _next_frame(framed, Hello)
            self._check(hello, pending, nonces, certified)
            self._admit(hello, pending)
            framed.put(frames.encode(frames.Beat()))
            return hello
        framed.put(frames.encode(frames.Welcome(nonce)))
        hello = yield from _next_frame(framed, Hello)
        nonces = nonce, hello.nonce
        self._check(hello, pending, nonces, certified)
        peer = hello.identity.node
        try:
            self._admit(hello, pending)
        except Refused as why:
            own = self.session.greet(peer, nonce, refused=why)
            framed.put(frames.encode(self._sign(own, nonces)))
            framed.finish()
            raise JoinError from None
        pending.peer = peer
        while not self.session.has_position(peer):
            yield 0
        own = self.session.greet(peer, nonce)
        framed.put(frames.encode(self._sign(own, nonces)))
        # From here on the peer may consider the connection established, and would take its end
        # for the loss of this node. So there is no deadline: only the peer may end it.
        pending.answered, pending.until = True, math.inf
        yield from _next_frame(framed, frames.Beat)
        return hello

    def _wait_until_open(self, pending: _Pending) -> Steps[None]:
        """Wait until the system has connected a TCP socket to a peer."""
        assert isinstance(pending.stream, socket.socket)
        assert pending.peer is not None
        yield select.EPOLLOUT
        error = pending.stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error == errno.ECONNREFUSED:
            self.session.refused_by(pending.peer)
            raise JoinError(
                "the machine refused the connection: the node does not listen"
            )
        if error:
            raise JoinError(os.strerror(error).lower())
        if pending.peer > self.session.node:
            raise JoinError("the peer listens, but does not connect")
        # The peer may have started to listen on this machine.
        if self._connect_unix(self.session.links[pending.peer]):
            raise JoinError
        pending.is_open, pending.until = True, time.monotonic() + HELLO_TIMEOUT

    def _shake_hands(self, pending: _Pending, identities: Identities) -> Steps[str]:
        """Run the TLS handshake; return the node at the other end."""
        from placer.channel.tls import TlsStream

        assert isinstance(pending.stream, socket.socket)
        context = identities.client if pending.connects else identities.server
        try:
            stream = pending.stream = TlsStream(pending.stream, context)
            while event := stream.handshake():
                yield event
        except OSError as error:
            raise JoinError(_end(error)) from None
        node = identities.node_of(stream)
        if node is None or pending.peer not in (None, node):
            raise JoinError("another node answers at this address")
        return node

    def _check(
        self,
        hello: Hello,
        pending: _Pending,
        nonces: tuple[bytes, bytes],
        certified: str | None,
    ) -> None:
        """Raise Refused unless a HELLO comes from an expected peer of this run."""
        node = hello.identity.node
        if not hmac.compare_digest(self._sign(hello, nonces).mac, hello.mac):
            raise Refused("the key is different")
        may_connect = not pending.connects and node > self.session.node
        if not (may_connect or node == pending.peer) or node not in self.session.links:
            raise Refused("the nodes do not exchange messages")
        if certified not in (None, node):
            raise Refused("the certificate belongs to another node")
        check_run(self.session, hello)

    def _admit(self, hello: Hello, pending: _Pending) -> None:
        """Raise Refused unless a peer may connect now, and has no connection yet."""
        assert pending.framed is not None
        admit(self.session, hello, pending.framed)
        node = hello.identity.node
        for other in [*self._pending.values()]:
            if other is pending or other.peer != node:
                continue
            is_unix = pending.framed is not None and pending.framed.is_unix
            if pending.connects or other.connects or is_unix:
                raise Refused("the node is already connected")
            # A peer opens one connection at a time. So it has given up the older one, but the end
            # of that connection may not have arrived yet.
            self._give_up(other, "")

    def _sign(self, hello: Hello, nonces: tuple[bytes, bytes]) -> Hello:
        """Return a HELLO with its authentication code, if the run has a key. `nonces`
        are the nonces of the listening and of the connecting node."""
        if self.key is None:
            return hello
        message = frames.to_msgpack([*nonces, replace(hello, mac=b"")])
        code = hmac.digest(self.key.derive("hello"), message, sha256)
        return replace(hello, mac=code)


def _next_frame(framed: FrameSocket, kind: type[Kind]) -> Steps[Kind]:
    """Wait for the next frame, which must be of this kind."""
    more = True  # the system does not report bytes that TLS has buffered
    while (arrived := framed.next()) is None:
        if framed.ended:
            raise JoinError(_end(framed.error))
        if not more:
            yield select.EPOLLIN
        more = framed.receive()
    frame, _ = arrived
    if isinstance(frame, frames.Refusal):
        raise JoinError(f"the peer refused the connection: {frame.why[:200]}")
    if not isinstance(frame, kind):
        raise InvalidFrame("unexpected kind of frame")
    return frame


def _end(error: OSError | None) -> str:
    """Return the likely reason why the peer ended a new connection."""
    if isinstance(error, ssl.SSLError):
        from placer.channel.tls import refusal

        return refusal(error)
    return "the peer closed the connection"
