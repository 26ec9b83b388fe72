"""The thread of a channel: it serves the connections when no other thread does.

It connects to the peers, sends heartbeats, finds lost peers, reports failures, and
sends what found no room while the program did something else. No message has to pass
through it, but a node that compiles or computes for minutes stays alive for the others.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from placer.channel import wire_bodies
from placer.channel.liveness import Liveness
from placer.channel.mailbox import Mailbox
from placer.channel.protocol import Cause
from placer.channel.shared import frames
from placer.channel.shared.frames import Kind
from placer.channel.shared.link import Link
from placer.channel.shared.rendezvous import PeerConnection, Rendezvous

CONNECT_PAUSE: Final = 0.02
"""Seconds between two attempts to connect to peers that do not listen yet."""
DRAIN_LIMIT: Final = 64
"""Frames of one peer that are handled before those of others."""
CLOSE_LINGER: Final = 1.0
"""Seconds that `close` waits until the last frames (GOODBYE, ABORT) are sent."""


class EventLoop:
    """The links to the connected peers, and the thread that serves them.

    `rendezvous` and `make_link` create the parts that depend on the channel; `beat` and
    `lost_after` are in seconds. `links` maps each connected peer to its link: this
    thread adds, others read. `fast_ticks` is true while nodes connect, and while this
    node waits for room to close.

    An eventfd is readable from a failure or the end of the run on: every wait for a
    frame polls it together with the socket, and so ends.
    """

    def __init__(
        self,
        peers: Sequence[str],
        mailbox: Mailbox,
        rendezvous: Callable[[select.epoll], Rendezvous],
        make_link: Callable[[PeerConnection, int], Link],
        *,
        beat: float,
        lost_after: float,
    ) -> None:
        self.links: dict[str, Link] = {}
        self.fast_ticks = True
        self.on_abort: Callable[[Cause], None] | None = None
        self._peers = peers
        self._mailbox = mailbox
        self._make_link = make_link
        self._beat = beat
        self._lost_after = lost_after
        self._tick = min(beat / 2, lost_after / 16, 0.1)
        self._liveness = Liveness(lost_after, beat)
        self._links_by_fd: dict[int, Link] = {}
        self._unreported: list[Cause] = []  # failures to report to the peers
        self._stopping = False
        self.epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.epoll.register(self._wake, select.EPOLLIN | select.EPOLLET)
        try:
            self.rendezvous = rendezvous(self.epoll)
        except BaseException:
            self.epoll.close()
            os.close(self._wake)
            raise
        self._wake_lock = threading.Lock()  # `_wake` may be closed by another thread
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"placer channel of {mailbox.node}", daemon=True
        )

    # Called by other threads.

    def start(self) -> None:
        """Start the thread, which connects to the peers."""
        self._thread.start()

    def fail(self, cause: Cause) -> None:
        """Record a failure found here; the thread reports it to the peers.

        Called by a thread that reads a socket, so it must not wait.
        """
        if self._mailbox.abort(cause):
            self._unreported.append(cause)
            self.wake_all()

    def broadcast_abort(self, cause: Cause) -> None:
        """Send a failure to every connected peer; `_add_link` serves later ones."""
        for link in list(self.links.values()):
            link.stream.put(_abort_frame(cause))

    def wake_all(self) -> None:
        """End every wait for a frame, and wake the thread."""
        with self._wake_lock:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """End the thread, once it has reported all failures."""
        assert threading.current_thread() is not self._thread
        self._stopping = True
        self.wake_all()
        self._thread.join()

    def close(self) -> None:
        """Send the last frame to every peer and close everything; call `stop` first."""
        # The order matters. GOODBYE goes behind all other frames, and only then are the
        # sockets closed, because a socket that ends without it counts as a loss. After
        # a failure, `broadcast_abort` has sent ABORT already. Peers that departed read
        # no more. The eventfd is closed last: `wake_all` may be called until then.
        cause = self._mailbox.aborted
        last = frames.frame(Kind.GOODBYE) if cause is None else _abort_frame(cause)
        if cause is None:
            for link in self.links.values():
                link.stream.put(last)
        until = time.monotonic() + CLOSE_LINGER
        for link in self.links.values():
            if link.peer not in self._mailbox.departed:
                link.stream.linger(until)
        for link in self.links.values():
            link.close()
        self.rendezvous.close(last)
        self.epoll.close()
        with self._wake_lock:
            self._closed = True
            os.close(self._wake)

    # Run by the thread.

    def _run(self) -> None:
        due = beat_due = 0.0
        try:
            while not self._stopping:
                for fd, events in self.epoll.poll(max(0.0, due - time.monotonic())):
                    self._on_event(fd, events)
                self._report_failures()
                now = time.monotonic()
                if now >= due:
                    due = now + (
                        min(CONNECT_PAUSE, self._tick)
                        if self.fast_ticks
                        else self._tick
                    )
                    is_beat = now >= beat_due
                    if is_beat:
                        beat_due = now + self._beat
                    self._on_tick(now, is_beat)
            self._report_failures()
        except Exception as error:
            # Without this thread nothing would end a wait before its deadline.
            what = f"{type(error).__name__}: {error}"
            cause = Cause(self._mailbox.node, "channel", what)
            if self._mailbox.abort(cause):
                self.broadcast_abort(cause)
            self.wake_all()
            raise

    def _report_failures(self) -> None:
        while self._unreported:
            cause = self._unreported.pop()
            self.broadcast_abort(cause)
            if self.on_abort is not None:
                self.on_abort(cause)

    def _on_event(self, fd: int, events: int) -> None:
        link = self._links_by_fd.get(fd)
        if link is not None:
            link.on_woken()
            if events & select.EPOLLOUT:
                link.stream.flush()
                link.sender.resume()
            self._drain(link)
            # If a thread of the program reads the socket, `reading_stopped` watches it.
            if not self._mailbox.is_being_read(link.peer):
                link.watch(self.epoll)
            self._mailbox.notify()
        elif fd != self._wake:
            connection = self.rendezvous.on_event(fd)
            if connection is not None:
                self._add_link(connection)

    def _drain(self, link: Link) -> None:
        """Handle the frames that have arrived, unless another thread does that."""
        for _ in range(DRAIN_LIMIT):
            if not self._mailbox.read(link.peer):
                return

    def _add_link(self, connection: PeerConnection) -> None:
        """Serve a peer that is connected now."""
        link = self._make_link(connection, self._wake)
        self.epoll.register(link.stream.fd, select.EPOLLONESHOT)
        link.watch(self.epoll)
        self._links_by_fd[link.stream.fd] = link
        self._liveness.hear(connection.peer, time.monotonic())
        # The peer may wait for this BEAT, see `rendezvous`: it must be the first frame,
        # before another thread finds the link.
        link.send_beat()
        self.links[connection.peer] = link
        # A thread that aborts sets the cause first and reads `links` second; here the
        # order is the reverse, so that the peer gets the cause from one of the two.
        cause = self._mailbox.aborted
        if cause is not None:
            link.stream.put(_abort_frame(cause))
        self._mailbox.notify()

    def _on_tick(self, now: float, is_beat: bool) -> None:
        self.rendezvous.connect([p for p in self._peers if p not in self.links])
        self.rendezvous.expire(now)
        for link in self.links.values():
            self._drain(link)
            link.watch(self.epoll)
            if link.heard:
                link.heard = False
                self._liveness.hear(link.peer, now)
            if is_beat and not link.ended and not link.stream.full:
                link.send_beat()
        for peer in list(self._mailbox.departed):
            self._liveness.forget(peer)
        for peer in self._liveness.lost_peers(now):
            self._liveness.forget(peer)
            self.links[peer].mark_lost(f"lost: no heartbeat for {self._lost_after:g} s")
        self._mailbox.notify()


def _abort_frame(cause: Cause) -> bytes:
    return frames.frame(Kind.ABORT, body=wire_bodies.encode_cause(cause))
