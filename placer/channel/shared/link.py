"""The connection to one peer: what goes out on its stream, and what its frames do."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from typing import Final

from placer.channel import wire_bodies
from placer.channel.mailbox import Mailbox
from placer.channel.protocol import Cause
from placer.channel.shared import frames
from placer.channel.shared.frames import CLEAR, Kind
from placer.channel.shared.receiver import Intake
from placer.channel.shared.sender import Outgoing
from placer.channel.shared.stream import Stream
from placer.channel.wire_bodies import Refused
from placer.memory.arena import Arena

_END: Final = select.EPOLLRDHUP | select.EPOLLONESHOT
"""What the channel's thread always wants to know, once: that the peer has gone."""


class Link:
    """A peer that has been met.

    One thread at a time reads (the mailbox sees to that); any may send. `fail` is told
    of the end of the run. `heard` is true when something has come since the last look,
    `ended` once nothing more can come.
    """

    def __init__(
        self,
        peer: str,
        stream: Stream,
        mailbox: Mailbox,
        arena: Arena,
        max_message: int,
        fail: Callable[[Cause], None],
    ) -> None:
        self.peer = peer
        self.stream = stream
        self.outgoing = Outgoing(stream, f"{mailbox.node} to {peer}")
        self.heard = False
        self.ended = False
        self._mailbox = mailbox
        self._intake = Intake(
            peer, arena, max_message, keep=stream.keep, release=self._release
        )
        self._fail = fail
        self._credit_told = 0
        self._wanted = 0  # the credit that the peer waits for
        self._clearing = False  # it wants to end: what it sent must leave the ring
        self._watching = threading.Lock()  # what is known and what is so change as one
        self._watched = 0

    # What comes.

    def read(self, timeout: float) -> bool:
        """Handle the next frame, waiting up to `timeout` seconds for it.

        False when none came. The end of the stream is nothing that is missing: what was
        sent before it has been read.
        """
        if self.ended:
            return False
        data = self.stream.get(timeout)
        if data is None:
            return False
        try:
            # Where one notice has come, more are likely to have.
            while data and self._handle(data) is Kind.BLOCK:
                data = self.stream.get(0)
        except Refused as why:
            self.lose(f"sent what no node sends: {why}")
        if data is not None and not data:
            if self.peer in self._mailbox.departed:
                self.ended = True
            else:
                self.lose("lost: its process has ended")
        return True

    def lose(self, what: str) -> None:
        """The peer is lost, and the run with it."""
        self.ended = True
        self._fail(Cause(self.peer, f"seen from {self._mailbox.node}", what))

    def _handle(self, data: memoryview[int]) -> Kind:
        """Do what a frame says; its kind."""
        self.heard = True
        kind, flags, a, b, c = frames.read_header(data)
        intake = self._intake
        if self.stream.file_comes and kind is not Kind.DESCRIPTOR:
            raise Refused("memory was announced and did not come")
        if kind is Kind.MESSAGE:
            message = intake.on_message(a, b, c, data)
            self._mailbox.deliver(message)
            if self._clearing:
                message.settle()
        elif kind is Kind.BLOCK:
            intake.on_block(a, b)
            self._mailbox.notify()
        elif kind is Kind.FREE:
            self.outgoing.give_back(a)
            self._mailbox.credit(self.peer, b)
        elif kind is Kind.BEAT:
            self._on_beat(flags, a, b)
        elif kind is Kind.LONG:
            intake.on_long(data)
        elif kind is Kind.REGION:
            intake.on_region(a, b)
            self.stream.file_comes = True
        elif kind is Kind.DESCRIPTOR:
            intake.on_file(self.stream.take_file())
        elif kind is Kind.GOODBYE:
            self._mailbox.depart(self.peer)
        elif kind is Kind.ABORT:
            self._fail(wire_bodies.read_cause(data[frames.HEADER.size :]))
        else:
            raise Refused("kind")
        return kind

    def _on_beat(self, flags: int, wanted: int, credit: int) -> None:
        self._mailbox.credit(self.peer, credit)
        if wanted > self._credit_told:
            self._wanted = wanted
            self.beat()
        if flags & CLEAR:
            self._clearing = True
            self._mailbox.settle(self.peer)

    # What goes.

    def beat(self, wanted: int = 0, clear: bool = False) -> None:
        """Send a sign of life, and the credit."""
        self._credit_told = told = self._mailbox.credited(self.peer)
        flags = CLEAR if clear else 0
        self.stream.put(frames.frame(Kind.BEAT, wanted, told, 0, flags))

    def ask(self, wanted: int) -> None:
        """Have the peer tell each rise of the credit until it is `wanted`."""
        self.beat(wanted)

    def acknowledge(self, total: int, enough: int) -> None:
        """The program has received `total` bytes; to be told once that is `enough`."""
        told = self._credit_told
        if told < self._wanted or total - told >= enough:
            self.beat()

    def _release(self, blocks: int) -> None:
        """Give blocks (bits) of the ring back, and tell the credit with that."""
        self._credit_told = self._mailbox.credited(self.peer)
        self.stream.put(frames.frame(Kind.FREE, blocks, self._credit_told))

    # Whom it wakes.

    @property
    def waits(self) -> bool:
        """Whether something waits for room, on this side or for this side."""
        return self.outgoing.busy or self._clearing

    def watch(self, epoll: select.epoll) -> None:
        """Have the channel's thread woken once for what it may have to do next.

        A program's thread that waits for a message reads the stream itself, so what
        comes is of interest there only while something waits for room.
        """
        with self._watching:
            wanted = _END
            if self.waits:
                wanted |= select.EPOLLIN
            if self.stream.full:
                wanted |= select.EPOLLOUT
            # An end that was seen would wake the thread for ever.
            if wanted != self._watched and not self.ended and not epoll.closed:
                self._watched = wanted
                epoll.modify(self.stream.fd, wanted)

    def woken(self) -> None:
        """The channel's thread was woken: the next `watch` counts again."""
        with self._watching:
            self._watched = 0

    def close(self) -> None:
        """Close the socket and forget the memory of both sides."""
        self.stream.close()
        self.outgoing.close()
        self._intake.close()
