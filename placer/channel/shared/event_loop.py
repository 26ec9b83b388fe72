"""The thread of a channel, which no message passes through.

It meets the peers, beats, notices who is lost, tells of failures, and goes on with what
found no room while the program was elsewhere: so a node that compiles or computes for
minutes is alive to the others.
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
from placer.channel.shared.rendezvous import Met, Rendezvous

PAUSE: Final = 0.02
"""Seconds between two tries to reach peers that are not there yet."""
SWEEP: Final = 64
"""Frames of one peer that are handled before others are looked at."""
LEAVE: Final = 1.0
"""Seconds that last words (GOODBYE, ABORT) get to leave the process."""


class Upkeep:
    """Links to the peers that have been met, and the thread that keeps them up.

    `wake` is readable from a failure or the end on: it ends every wait for a frame.
    `hurried` is true while nodes are still to come, or are to make room for an end.
    """

    def __init__(
        self,
        peers: Sequence[str],
        mailbox: Mailbox,
        rendezvous: Callable[[select.epoll], Rendezvous],
        link: Callable[[Met, int], Link],
        *,
        beat: float,
        lost_after: float,
    ) -> None:
        self.links: dict[str, Link] = {}
        self.hurried = True
        self.on_abort: Callable[[Cause], None] | None = None
        self._peers = peers
        self._mailbox = mailbox
        self._link = link
        self._beat = beat
        self._lost_after = lost_after
        self._tick = min(beat / 2, lost_after / 16, 0.1)
        self._liveness = Liveness(lost_after, beat)
        self._by_fd: dict[int, Link] = {}
        self._learned: list[Cause] = []  # failures that nobody was told of yet
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
        self._open = threading.Lock()  # held to use `wake` from elsewhere
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"placer channel of {mailbox.node}", daemon=True
        )

    # From other threads.

    def start(self) -> None:
        """Begin to meet the peers."""
        self._thread.start()

    def fail(self, cause: Cause) -> None:
        """A failure was learned: the thread tells everybody."""
        if self._mailbox.abort(cause):
            self._learned.append(cause)
            self.rouse()

    def tell(self, cause: Cause) -> None:
        """Tell every peer that has been met of a failure; others are as they come."""
        for link in list(self.links.values()):
            link.stream.put(_abort(cause))

    def rouse(self) -> None:
        """End every wait for a frame, and have the thread look around."""
        with self._open:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """End the thread, once it has told what it had to."""
        assert threading.current_thread() is not self._thread
        self._stopping = True
        self.rouse()
        self._thread.join()

    def close(self) -> None:
        """Say goodbye, unless the run failed, and close everything."""
        cause = self._mailbox.aborted
        last = frames.frame(Kind.GOODBYE) if cause is None else _abort(cause)
        if cause is None:
            for link in self.links.values():
                link.stream.put(last)
        until = time.monotonic() + LEAVE
        for link in self.links.values():
            if link.peer not in self._mailbox.departed:
                link.stream.linger(until)
        for link in self.links.values():
            link.close()
        self.rendezvous.close(last)
        self.epoll.close()
        with self._open:
            self._closed = True
            os.close(self._wake)

    # In the thread.

    def _run(self) -> None:
        due = beat_due = 0.0
        try:
            while not self._stopping:
                for fd, events in self.epoll.poll(max(0.0, due - time.monotonic())):
                    self._on_event(fd, events)
                self._tell_learned()
                now = time.monotonic()
                if now >= due:
                    due = now + (min(PAUSE, self._tick) if self.hurried else self._tick)
                    beats = now >= beat_due
                    if beats:
                        beat_due = now + self._beat
                    self._on_tick(now, beats)
            self._tell_learned()
        except Exception as error:
            # Without this thread every wait would last to its deadline.
            what = f"{type(error).__name__}: {error}"
            cause = Cause(self._mailbox.node, "channel", what)
            if self._mailbox.abort(cause):
                self.tell(cause)
            self.rouse()
            raise

    def _tell_learned(self) -> None:
        while self._learned:
            cause = self._learned.pop()
            self.tell(cause)
            if self.on_abort is not None:
                self.on_abort(cause)

    def _on_event(self, fd: int, events: int) -> None:
        link = self._by_fd.get(fd)
        if link is not None:
            link.woken()
            if events & select.EPOLLOUT:
                link.stream.flush()
                link.outgoing.go_on()
            self._sweep(link)
            # A program's thread that reads the stream has it watched when it leaves.
            if not self._mailbox.is_read(link.peer):
                link.watch(self.epoll)
            self._mailbox.notify()
        elif fd != self._wake:
            met = self.rendezvous.on_event(fd)
            if met is not None:
                self._meet(met)

    def _sweep(self, link: Link) -> None:
        """Handle what has come, unless a program's thread does that."""
        for _ in range(SWEEP):
            if not self._mailbox.read(link.peer):
                return

    def _meet(self, met: Met) -> None:
        """A peer has shown who it is. The one that we came to waits for a BEAT."""
        link = self._link(met, self._wake)
        self.epoll.register(link.stream.fd, select.EPOLLONESHOT)
        link.watch(self.epoll)
        self._by_fd[link.stream.fd] = link
        self._liveness.hear(met.peer, time.monotonic())
        link.beat()  # before a program's thread finds the link: it is to come first
        self.links[met.peer] = link
        # Whoever sets a cause tells those that are in `links` afterwards.
        cause = self._mailbox.aborted
        if cause is not None:
            link.stream.put(_abort(cause))
        self._mailbox.notify()

    def _on_tick(self, now: float, beats: bool) -> None:
        self.rendezvous.connect([p for p in self._peers if p not in self.links])
        self.rendezvous.expire(now)
        for link in self.links.values():
            self._sweep(link)
            link.watch(self.epoll)
            if link.heard:
                link.heard = False
                self._liveness.hear(link.peer, now)
            if beats and not link.ended and not link.stream.full:
                link.beat()
        for peer in list(self._mailbox.departed):
            self._liveness.forget(peer)
        for peer in self._liveness.lost(now):
            self._liveness.forget(peer)
            self.links[peer].lose(f"lost: no heartbeat for {self._lost_after:g} s")
        self._mailbox.notify()


def _abort(cause: Cause) -> bytes:
    return frames.frame(Kind.ABORT, body=wire_bodies.encode_cause(cause))
