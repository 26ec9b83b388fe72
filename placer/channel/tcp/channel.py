"""The channel of a node over TCP; see the package for how it works."""

from __future__ import annotations

import os
import secrets
import select
import threading
import time
from typing import Final

from placer.channel import frame_bodies
from placer.channel.cause import Cause
from placer.channel.frame_bodies import InvalidFrame
from placer.channel.session import CLOSE_LINGER, Session
from placer.channel.tcp import frames
from placer.channel.tcp.frame_socket import FrameSocket
from placer.channel.tcp.frames import CLEAR, INLINE, Greeting, Kind, describe_arrays
from placer.channel.tcp.joining import Joining
from placer.channel.tcp.link import Link
from placer.channel.types import Array, Key

DRAIN_LIMIT: Final = 64
"""Frames of one peer that are handled before those of others."""


class TcpChannel(Session):
    """The channel of one node; see `session.Session` for its arguments.

    `links` maps each connected peer to its link: the session's thread adds, others
    read. An eventfd is readable from a failure or the end of the run on: every wait for
    a frame polls it together with the socket, and so ends.
    """

    transport = "tcp"

    def _open(self) -> None:
        self.links: dict[str, Link] = {}
        self.mailbox.readers = self.links
        self.connected = self.links
        self._informed = self.links  # each link begins with the failure, if any
        self._links_by_fd: dict[int, Link] = {}
        self._incarnation = secrets.randbits(63)
        self._incarnations: dict[str, int] = {}
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        endpoints = {name: _host_and_port(at) for name, at in self._addresses.items()}
        try:
            self._joining = Joining(
                self.node, endpoints, self, self._eventfd, self._arena
            )
        except BaseException:
            os.close(self._eventfd)
            raise
        self._epoll = self._joining.epoll
        self._eventfd_lock = threading.Lock()  # another thread may close it
        self._epoll.register(self._eventfd, select.EPOLLIN | select.EPOLLET)

    @property
    def refused(self) -> int:
        """The number of connections that were refused."""
        return self._joining.refused

    # Called by threads of the program.

    def _transmit(self, to: str, key: Key, arrays: list[Array]) -> None:
        contents = describe_arrays(key, arrays)
        link = self.links.get(to)
        ask = link.send_beat if link is not None else None
        nbytes = contents.arrays.total
        self.mailbox.reserve(to, key, nbytes, nbytes, ask)
        assert link is not None
        link.send(contents, arrays)
        if link.has_pending:
            link.watch()

    def _on_credit(self, source: str, total: int) -> None:
        """Acknowledge what the program received, now or with the next heartbeat."""
        threshold = min(INLINE, self._limits.bound // 4)
        self.links[source].acknowledge(total, threshold)

    def _undelivered_peers(self) -> set[str]:
        return {peer for peer, link in self.links.items() if not link.is_delivered}

    def _request_delivery(self, peer: str) -> None:
        """Ask a peer to accept all that was sent: its program may receive it later."""
        self.links[peer].send_beat(flags=CLEAR)
        self.links[peer].watch()

    def _wake(self) -> None:
        with self._eventfd_lock:
            if not self._epoll.closed:
                os.eventfd_write(self._eventfd, 1)

    def _broadcast_abort(self, cause: Cause) -> None:
        # `_add_link` serves the peers that connect later.
        for link in list(self.links.values()):
            link.socket.put(_abort_frame(cause))

    # What `joining` asks; run by the session's thread.

    def needs_connection(self, peer: str) -> bool:
        """Whether a peer is to be connected; see `joining.Peers`."""
        link = self.links.get(peer)
        if link is None:
            return True
        return link.ended and peer not in self.mailbox.departed and not link.is_invalid

    def has_position(self, peer: str) -> bool:
        """Whether the old connection to a peer has ended; see `joining.Peers`."""
        link = self.links.get(peer)
        if link is None or link.ended:
            return True
        link.socket.abandon()
        self._drain(link)
        return link.ended

    def greet(self, peer: str) -> Greeting:
        """Return the greeting for a peer; see `joining.Peers`."""
        hello, link = self._hello(self.node, peer), self.links.get(peer)
        expected, incomplete = (1, []) if link is None else link.position()
        return Greeting(hello, self._incarnation, expected, incomplete)

    def check(self, greeting: Greeting) -> None:
        """Check who has sent a greeting; see `joining.Peers`."""
        peer = greeting.hello.node
        if greeting.hello != self._hello(peer, self.node):
            raise InvalidFrame("hello")
        if self._incarnations.get(peer, greeting.incarnation) != greeting.incarnation:
            self._fail(Cause(peer, f"seen from {self.node}", "was restarted"))
            raise InvalidFrame("incarnation")
        if peer in self.mailbox.departed:
            raise InvalidFrame("name")

    # Run by the session's thread.

    def _poll(self, timeout: float) -> None:
        for fd, events in self._epoll.poll(timeout):
            link = self._links_by_fd.get(fd)
            if link is not None:
                self._on_event(link, events)
            elif fd != self._eventfd:
                established = self._joining.on_event(fd)
                if established is not None:
                    self._on_established(*established)

    def _on_event(self, link: Link, events: int) -> None:
        link.on_woken()
        if link.socket.polls_out:
            return  # `reading_stopped` watches it
        if events & select.EPOLLOUT:
            link.socket.flush()
            link.advance()
        self._drain(link)
        # If a thread of the program reads the socket, `reading_stopped` watches it.
        if link.peer not in self.mailbox.being_read or link.socket.full:
            link.watch()
        self.mailbox.notify()

    def _drain(self, link: Link) -> None:
        """Handle the frames that have arrived, unless another thread does that."""
        for _ in range(DRAIN_LIMIT):
            if not self.mailbox.read(link.peer):
                return

    def _on_established(
        self, peer: str, socket: FrameSocket, greeting: Greeting
    ) -> None:
        """Serve a peer that is connected now, for the first time or again."""
        self._incarnations[peer] = greeting.incarnation
        link = self.links.get(peer)
        if link is None:
            self._add_link(peer, socket)
            return
        del self._links_by_fd[link.socket.fd]
        self._links_by_fd[socket.fd] = link
        self._liveness.hear(peer, time.monotonic())
        try:
            link.reconnect(socket, greeting.expected, dict(greeting.incomplete))
        except InvalidFrame as why:
            link.lose(f"sent an invalid frame: {why}")
        if self.aborted is not None:
            socket.put(_abort_frame(self.aborted))
        if link.socket is not socket:
            socket.close()
        self.mailbox.notify()

    def _add_link(self, peer: str, socket: FrameSocket) -> None:
        """Serve a peer that is connected for the first time."""
        link = Link(
            peer,
            socket,
            self.mailbox,
            self._arena,
            self._limits.max_message,
            self._epoll,
            self._fail,
        )
        link.watch()
        self._links_by_fd[socket.fd] = link
        self._liveness.hear(peer, time.monotonic())
        # The peer may wait for this BEAT, see `joining`: it must be the first frame,
        # before another thread finds the link.
        link.send_beat()
        self.links[peer] = link
        # A thread that aborts sets the cause first and reads `links` second; here the
        # order is the reverse, so that the peer gets the cause from one of the two.
        if self.aborted is not None:
            socket.put(_abort_frame(self.aborted))
        self.mailbox.notify()

    def _on_tick(self, now: float, is_beat: bool) -> None:
        self._joining.on_tick(now)
        for link in self.links.values():
            self._drain(link)
            link.watch()
            if link.heard:
                link.heard = False
                self._liveness.hear(link.peer, now)
            if is_beat and not link.ended and not link.socket.full:
                link.send_beat()
        super()._on_tick(now, is_beat)
        self.mailbox.notify()

    def _close_sockets(self) -> None:
        # The order matters. GOODBYE goes behind all other frames. Then each side waits
        # for the end of the other one: a socket that is closed with unread bytes
        # discards what it has not sent. After a failure, `_broadcast_abort` has sent
        # ABORT already.
        cause = self.aborted
        last = frames.frame(Kind.GOODBYE) if cause is None else _abort_frame(cause)
        until = time.monotonic() + CLOSE_LINGER
        for link in self.links.values():
            if cause is None:
                link.socket.put(last)
            link.socket.linger(until)
            link.socket.finish()
        for link in self.links.values():
            link.socket.drain(until)
            link.close()
        self._joining.close(last)
        with self._eventfd_lock:
            self._epoll.close()
            os.close(self._eventfd)


def _abort_frame(cause: Cause) -> bytes:
    return frames.text_frame(Kind.ABORT, frame_bodies.encode_cause(cause))


def _host_and_port(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)
