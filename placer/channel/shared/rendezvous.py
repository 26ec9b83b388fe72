"""How the nodes of a run find each other: a unix socket for each pair.

Every node listens at an abstract address made from the job, the node and its port, so
there is nothing in the file system. The node whose name comes later connects. Both ends
check that the other process is the same user's, then say HELLO: first the one that
connects. The other has met it only when a BEAT shows that the answer has come: a
connection may have waited to be accepted for longer than who made it did.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placer.channel import wire_bodies
from placer.channel.shared import frames
from placer.channel.shared.frames import Kind
from placer.channel.wire_bodies import Hello, Refused
from placer.errors import RunError

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid
PATIENCE: Final = 5.0
"""Seconds that a connection has to say who it is."""
UNKNOWN: Final = 64
"""Connections that may be about to say so at once."""


@dataclass(slots=True)
class _Pending:
    connection: socket.socket
    peer: str | None  # whom we connected to, or who said hello; else unknown
    until: float
    answered: bool = False  # it came, and its hello was answered


@dataclass(frozen=True, slots=True)
class Met:
    """A connection to a peer that has shown who it is."""

    peer: str
    connection: socket.socket


class Rendezvous:
    """Listens and connects for a node; `refused` counts connections turned away.

    RunError when the node is already there.
    """

    def __init__(
        self,
        node: str,
        endpoints: Mapping[str, str],
        job: str,
        epoll: select.epoll,
    ) -> None:
        self.refused = 0
        self._node = node
        self._names = sorted(endpoints)
        self._endpoints = dict(endpoints)
        self._job = job
        self._epoll = epoll
        self._pending: dict[int, _Pending] = {}
        self._met: set[str] = set()
        self._listener = _socket()
        try:
            self._listener.bind(address(job, node, endpoints[node]))
        except OSError as error:
            self._listener.close()
            where = f"{node} cannot listen at {endpoints[node]}"
            if error.errno != errno.EADDRINUSE:
                raise RunError(f"{where}: {error}") from None
            raise RunError(
                f"{where}: the port is in use",
                hint="another run may still be going; end it or choose another port",
            ) from None
        self._listener.listen(UNKNOWN)
        epoll.register(self._listener, select.EPOLLIN)

    def connect(self, peers: Sequence[str]) -> None:
        """Try those of `peers` that this node connects to and is not connecting to."""
        trying = {pending.peer for pending in self._pending.values()}
        for peer in peers:
            if peer > self._node or peer in trying:
                continue
            connection = _socket()
            try:
                connection.connect(address(self._job, peer, self._endpoints[peer]))
            except OSError:
                connection.close()  # it is not there yet
                continue
            if _same_user(connection):
                self._expect(_Pending(connection, peer, _soon()))
                self._say_hello(connection, peer)
            else:
                self.refuse(connection)

    def on_event(self, fd: int) -> Met | None:
        """Something can be read from one of the sockets here."""
        if fd == self._listener.fileno():
            self._accept()
            return None
        pending = self._pending.get(fd)
        return None if pending is None else self._hear(pending)

    def expire(self, now: float) -> None:
        """Turn away those that did not say who they are."""
        for pending in [p for p in self._pending.values() if p.until < now]:
            self._drop(pending)
            self.refuse(pending.connection)

    def refuse(self, connection: socket.socket) -> None:
        """Turn a connection away."""
        self.refused += 1
        connection.close()

    def close(self, last: bytes) -> None:
        """Close all sockets that are here.

        `last` is a frame for those that may have met this node already.
        """
        for pending in list(self._pending.values()):
            self._drop(pending)
            if pending.answered:
                with contextlib.suppress(OSError):
                    pending.connection.send(last)
            pending.connection.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it has gone again
        connection.setblocking(False)
        if _same_user(connection) and len(self._pending) < UNKNOWN:
            self._expect(_Pending(connection, None, _soon()))
        else:
            self.refuse(connection)

    def _expect(self, pending: _Pending) -> None:
        self._pending[pending.connection.fileno()] = pending
        self._epoll.register(pending.connection, select.EPOLLIN)

    def _say_hello(self, connection: socket.socket, peer: str) -> None:
        hello = wire_bodies.encode(Hello(self._job, self._node, peer, self._names))
        # A peer that has gone meanwhile is noticed where what it says next is read.
        with contextlib.suppress(OSError):
            connection.send(frames.frame(Kind.HELLO, body=hello))

    def _hear(self, pending: _Pending) -> Met | None:
        connection, peer = pending.connection, pending.peer
        self._drop(pending)
        try:
            data = memoryview(connection.recv(frames.MAX_FRAME + 1))
            if pending.answered:
                _check_beat(data)
            else:
                said = self._check(data, peer)
        except BlockingIOError:
            self._expect(pending)
            return None
        except (OSError, Refused):
            self.refuse(connection)
            return None
        if peer is None:
            self._say_hello(connection, said)
            # It may have met this node from here on, so that nothing but its own end
            # ends the wait: it would take an end of ours for a loss.
            self._expect(_Pending(connection, said, math.inf, answered=True))
            return None
        self._met.add(peer)
        return Met(peer, connection)

    def _check(self, data: memoryview[int], expected: str | None) -> str:
        """Who says hello; `Refused` unless it is a peer, and the one expected.

        One comes once: its name is taken while it is there.
        """
        kind, *_ = frames.read_header(data)
        if kind is not Kind.HELLO:
            raise Refused("kind")
        hello = wire_bodies.read_hello(data[frames.HEADER.size :])
        if (hello.job, hello.to, hello.nodes) != (self._job, self._node, self._names):
            raise Refused("hello")
        comes = expected is None and hello.node > self._node
        if hello.node not in self._names or not (comes or hello.node == expected):
            raise Refused("node")
        answered = {pending.peer for pending in self._pending.values()}
        if hello.node in answered or hello.node in self._met:
            raise Refused("name")
        return hello.node

    def _drop(self, pending: _Pending) -> None:
        del self._pending[pending.connection.fileno()]
        self._epoll.unregister(pending.connection)


def address(job: str, node: str, endpoint: str) -> bytes:
    """The abstract address of a node; nobody guesses it who cannot guess the job."""
    port = endpoint.rpartition(":")[2]
    text = "\0".join((job, node, port))
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    return f"\0placer/{os.geteuid()}/{digest}".encode()


def _soon() -> float:
    return time.monotonic() + PATIENCE


def _check_beat(data: memoryview[int]) -> None:
    kind, *_ = frames.read_header(data)
    if kind is not Kind.BEAT:
        raise Refused("kind")


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def _same_user(connection: socket.socket) -> bool:
    option = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    _, uid, _ = _CREDENTIALS.unpack(option)
    return bool(uid == os.geteuid())
