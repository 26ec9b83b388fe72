"""The channel of a node over shared memory; see the package for how it works."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from typing import Final

from placer.channel import frame_bodies
from placer.channel.cause import Cause
from placer.channel.session import CLOSE_LINGER, Session
from placer.channel.shared import frames
from placer.channel.shared.frame_socket import FrameSocket
from placer.channel.shared.frames import CLEAR, Kind, describe_arrays
from placer.channel.shared.link import Link
from placer.channel.shared.region import Bytes, Regions, is_supported
from placer.channel.shared.rendezvous import Rendezvous
from placer.channel.types import Array, Key
from placer.errors import RunError

DRAIN_LIMIT: Final = 64
"""Frames of one peer that are handled before those of others."""


class SharedMemoryChannel(Session):
    """The channel of one node; see `session.Session` for its arguments.

    Addresses only distinguish nodes here; no port is used. Connections of other users
    are refused in any case. `max_message` does not count memory of `share`.

    `links` maps each connected peer to its link: the session's thread adds, others
    read. An eventfd is readable from a failure or the end of the run on: every wait for
    a frame polls it together with the socket, and so ends.
    """

    transport = "shared memory"

    def _open(self) -> None:
        if not is_supported():
            raise RunError(
                "this system has no shared memory that channels can use",
                hint="choose the transport zeromq",
            )
        self.links: dict[str, Link] = {}
        self.mailbox.readers = self.links
        self.connected = self.links
        self._informed = self.links  # each link begins with the failure, if any
        self._links_by_fd: dict[int, Link] = {}
        self._regions = Regions()
        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self._rendezvous = Rendezvous(
                self.node, self._endpoints, self._job, self._hello, self.links
            )
        except BaseException:
            os.close(self._eventfd)
            raise
        self._epoll = self._rendezvous.epoll
        self._eventfd_lock = threading.Lock()  # another thread may close it
        self._epoll.register(self._eventfd, select.EPOLLIN | select.EPOLLET)

    @property
    def refused(self) -> int:
        """The number of connections that were refused."""
        return self._rendezvous.refused

    # Called by threads of the program.

    def _transmit(self, to: str, key: Key, arrays: list[Array]) -> None:
        contents = describe_arrays(key, arrays, self._regions.find(arrays))
        link = self.links.get(to)
        ask = link.send_beat if link is not None else None
        nbytes = contents.arrays.total
        self.mailbox.reserve(to, key, nbytes, contents.copied_nbytes, ask)
        assert link is not None
        link.sender.send(contents, arrays)
        if link.sender.has_pending:
            # BEATs that have arrived may return chunks: read them now rather than wake
            # the session's thread for them.
            while link.sender.has_pending and self.mailbox.read(to):
                pass
            link.watch()

    def _on_credit(self, source: str, total: int) -> None:
        """Acknowledge what the program received, now or with the next heartbeat."""
        self.links[source].acknowledge(total, self._limits.bound // 4)

    def _allocate(self, nbytes: int) -> Bytes:
        return self._regions.allocate(nbytes, self.node)

    def _undelivered_peers(self) -> set[str]:
        return {peer for peer, link in self.links.items() if link.sender.has_pending}

    def _request_delivery(self, peer: str) -> None:
        """Ask a peer to copy everything out of the chunk pool: its program may receive
        it much later."""
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

    # Run by the session's thread.

    def _poll(self, timeout: float) -> None:
        for fd, events in self._epoll.poll(timeout):
            link = self._links_by_fd.get(fd)
            if link is not None:
                self._on_event(link, events)
            elif fd != self._eventfd:
                established = self._rendezvous.on_event(fd)
                if established is not None:
                    self._add_link(*established)

    def _on_event(self, link: Link, events: int) -> None:
        link.on_woken()
        if events & select.EPOLLOUT:
            link.socket.flush()
            link.sender.resume()
        self._drain(link)
        # If a thread of the program reads the socket, `reading_stopped` watches it.
        if link.peer not in self.mailbox.being_read:
            link.watch()
        self.mailbox.notify()

    def _drain(self, link: Link) -> None:
        """Handle the frames that have arrived, unless another thread does that."""
        for _ in range(DRAIN_LIMIT):
            if not self.mailbox.read(link.peer):
                return

    def _add_link(self, peer: str, connection: socket.socket) -> None:
        """Serve a peer that is connected now."""
        link = Link(
            peer,
            FrameSocket(connection, self._eventfd, self._arena),
            self.mailbox,
            self._arena,
            self._regions.by_number,
            self._limits.max_message,
            self._epoll,
            self._fail,
        )
        link.watch()
        self._links_by_fd[link.socket.fd] = link
        self._liveness.hear(peer, time.monotonic())
        # The peer may wait for this BEAT, see `rendezvous`: it must be the first frame,
        # before another thread finds the link.
        link.send_beat()
        self.links[peer] = link
        # A thread that aborts sets the cause first and reads `links` second; here the
        # order is the reverse, so that the peer gets the cause from one of the two.
        if self.aborted is not None:
            link.socket.put(_abort_frame(self.aborted))
        self.mailbox.notify()

    def _on_tick(self, now: float, is_beat: bool) -> None:
        self._rendezvous.connect()
        self._rendezvous.expire(now)
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
        # The order matters. GOODBYE goes behind all other frames, and only then are the
        # sockets closed, because a socket that ends without it counts as a loss. After
        # a failure, `_broadcast_abort` has sent ABORT already. Peers that departed read
        # no more.
        cause = self.aborted
        last = frames.frame(Kind.GOODBYE) if cause is None else _abort_frame(cause)
        if cause is None:
            for link in self.links.values():
                link.socket.put(last)
        until = time.monotonic() + CLOSE_LINGER
        for link in self.links.values():
            if link.peer not in self.mailbox.departed:
                link.socket.linger(until)
        for link in self.links.values():
            link.close()
        self._rendezvous.close(last)
        with self._eventfd_lock:
            self._epoll.close()
            os.close(self._eventfd)
        self._regions.close()


def _abort_frame(cause: Cause) -> bytes:
    return frames.frame(Kind.ABORT, body=frame_bodies.encode_cause(cause))
