"""The connection to one peer: dispatches the frames that arrive on its socket."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from placer.channel import frame_bodies
from placer.channel.cause import Cause
from placer.channel.frame_bodies import InvalidFrame
from placer.channel.mailbox import Mailbox
from placer.channel.shared import frames
from placer.channel.shared.frame_socket import FrameSocket
from placer.channel.shared.frames import CLEAR, Kind
from placer.channel.shared.receiver import Receiver
from placer.channel.shared.region import Region
from placer.channel.shared.sender import Sender
from placer.memory.arena import Arena

_END: Final = select.EPOLLRDHUP | select.EPOLLONESHOT
"""The event that the session's thread always watches for, once: the peer has closed."""


@dataclass(eq=False)
class Link:
    """A connected peer.

    One thread at a time calls `read`, which the mailbox ensures; any thread may send.
    `regions` are those of `share`, by number. `epoll` wakes the session's thread.
    `fail` is called with the root cause when this link ends the run. `heard` is true if
    a frame has arrived since the session's thread reset it, `ended` once no more can
    arrive.
    """

    peer: str
    socket: FrameSocket
    mailbox: Mailbox
    arena: Arena
    regions: Mapping[int, Region]
    max_message: int
    epoll: select.epoll
    fail: Callable[[Cause], None]
    heard: bool = False
    ended: bool = False
    _credit_sent: int = 0
    _credit_wanted: int = 0  # the credit that the peer waits for, or 0
    _peer_clears: bool = False  # copy what it sends: it wants to close
    _watch_lock: threading.Lock = field(default_factory=threading.Lock)
    _watched_events: int = 0

    def __post_init__(self) -> None:
        what = f"{self.mailbox.node} to {self.peer}"
        self.sender = Sender(self.socket, self.regions, what)
        self.receiver = Receiver(
            self.peer,
            self.socket,
            self.arena,
            self.max_message,
            release=lambda freed: self.send_beat(freed=freed),
        )

    # The interface of mailbox.FrameReader.

    def read(self, timeout: float) -> bool:
        """Handle the next frame; see `mailbox.FrameReader`.

        When the connection has ended, all frames that the peer sent before have been
        read, a GOODBYE as well if it sent one.
        """
        data = None if self.ended else self.socket.get(timeout)
        if data is None:
            return False
        try:
            # After the frame of one chunk those of the next ones are likely there.
            while data and self._handle(data) is Kind.CHUNK:
                data = self.socket.get(0)
        except InvalidFrame as why:
            self._lose(f"sent an invalid frame: {why}")
        if data is not None and not data:
            self.ended = True
            if self.peer not in self.mailbox.departed:
                self._lose("lost: its process has ended")
        return True

    def reading_stopped(self) -> None:
        """Let the session's thread serve a blocked sender; see `FrameReader`."""
        if self._has_blocked_sender:
            self.watch()

    # Receiving.

    def _lose(self, what: str) -> None:
        """End the run, because the peer is lost; `what` says why."""
        self.ended = True
        self.fail(Cause(self.peer, f"seen from {self.mailbox.node}", what))

    def _handle(self, data: memoryview[int]) -> Kind:
        """Act on a frame; return its kind."""
        self.heard = True
        kind, flags, a, b, c = frames.read_header(data)
        receiver = self.receiver
        if self.socket.expects_file and kind is not Kind.DESCRIPTOR:
            raise InvalidFrame("memory was announced and did not follow")
        if kind is Kind.MESSAGE:
            message = receiver.on_message(data)
            self.mailbox.deliver(message)
            if self._peer_clears:
                message.detach()
        elif kind is Kind.CHUNK:
            receiver.on_chunk(a, b)
            self.mailbox.notify()
        elif kind is Kind.BEAT:
            self._on_beat(flags, a, b, c)
        elif kind is Kind.LONG:
            receiver.on_long(data)
        elif kind is Kind.REGION:
            receiver.on_region(a, b)
        elif kind is Kind.DESCRIPTOR:
            receiver.on_descriptor()
        elif kind is Kind.GOODBYE:
            self.mailbox.mark_departed(self.peer)
        elif kind is Kind.ABORT:
            self.fail(frame_bodies.read_cause(data[frames.HEADER.size :]))
        else:
            raise InvalidFrame("kind")
        return kind

    def _on_beat(self, flags: int, wanted: int, credit: int, freed: int) -> None:
        if freed:
            self.sender.release_chunks(freed)
        self.mailbox.update_credit(self.peer, credit)
        if wanted > self._credit_sent:
            self._credit_wanted = wanted
            self.send_beat()
        if flags & CLEAR:
            self._peer_clears = True
            self.mailbox.detach_all(self.peer)

    # Sending.

    def send_beat(self, wanted: int = 0, freed: int = 0, flags: int = 0) -> None:
        """Send a heartbeat with the credit.

        `wanted` is the credit that this node waits for, `freed` (a bit mask) are chunks
        to return to the peer; see `frames`.
        """
        self._credit_sent = credit = self.mailbox.granted_credit(self.peer)
        self.socket.put(frames.frame(Kind.BEAT, wanted, credit, freed, flags))

    def acknowledge(self, total: int, threshold: int) -> None:
        """Report that the program has received `total` bytes, if that is due.

        It is due when the peer waits for it, or when `threshold` bytes have not been
        reported; else the next heartbeat reports it.
        """
        credit_sent = self._credit_sent
        if credit_sent < self._credit_wanted or total - credit_sent >= threshold:
            self.send_beat()

    # What wakes the session's thread.

    @property
    def _has_blocked_sender(self) -> bool:
        """Whether a sender waits for chunks, here or (to close) at the peer."""
        return (
            self.sender.has_pending
            or self._peer_clears
            or self.mailbox.is_awaited(self.peer)
        )

    def watch(self) -> None:
        """Have the session's thread woken once, for what it may have to do next.

        A thread of the program that waits for a message reads the socket itself. So the
        session's thread watches for frames only while a sender is blocked, and no
        thread of the program may be waiting.
        """
        # A watch is one-shot: an event that a thread of the program is about to handle
        # would otherwise wake the session's thread again and again. The lock makes the
        # cached mask and that of the epoll change together.
        with self._watch_lock:
            events = _END
            if self._has_blocked_sender:
                events |= select.EPOLLIN
            if self.socket.full:
                events |= select.EPOLLOUT
            # The end of the connection stays readable: do not watch it again and again.
            if events != self._watched_events and not (self.ended or self.epoll.closed):
                self._watched_events = events
                self.epoll.modify(self.socket.fd, events)

    def on_woken(self) -> None:
        """Note that the one-shot event has fired, so that `watch` sets it again."""
        with self._watch_lock:
            self._watched_events = 0

    def close(self) -> None:
        """Close the socket and drop the memory of both sides."""
        self.socket.close()
        self.sender.close()
        self.receiver.close()
