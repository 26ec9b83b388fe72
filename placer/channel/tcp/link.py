"""The session of a node with one peer: the messages in both directions, and credit.

**Sending.** `send` numbers a message and sends its header at once. Its pieces follow as
far as the receiver has allowed and the socket has room, and a message whose pieces may
not be sent does not hold up the others. What cannot be sent is sent later by whichever
thread learns that it can: the one that reads a BEAT of the peer, or the session's
thread, once the socket is writable.

A message is stored until the peer has acknowledged it. After its connection has broken,
what the peer has not received is sent again over a new one.

**Receiving.** One thread at a time reads, which the mailbox ensures: a thread of the
program that waits for this peer, or else the session's thread.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from placer.channel import frame_bodies
from placer.channel.cause import Cause
from placer.channel.frame_bodies import InvalidFrame
from placer.channel.mailbox import Mailbox
from placer.channel.payload import as_bytes
from placer.channel.shared.chunks import Fragment, chunk_layout, in_array
from placer.channel.tcp import frames
from placer.channel.tcp.frame_socket import Buffer, Frame, FrameSocket
from placer.channel.tcp.frames import CLEAR, INLINE, Contents, Kind
from placer.channel.tcp.message import EAGER, InlineMessage, PiecedMessage, piece_sizes
from placer.channel.types import Array
from placer.memory.aligned import ALIGNMENT
from placer.memory.arena import Arena

_END: Final = select.EPOLLRDHUP | select.EPOLLONESHOT
"""The event that the session's thread always watches for, once: the peer has closed."""
RECONNECT_PAUSE: Final = 0.02
"""Seconds between two looks whether a broken connection was opened again."""
JOINED_FRAGMENTS: Final = 64
"""A piece of more fragments is copied into one buffer to be sent."""
_PADDING: Final = tuple(bytes(n) for n in range(ALIGNMENT))


@dataclass(eq=False, slots=True)
class _Outgoing:
    """A message that is being sent; `sent` and `allowed` are numbers of pieces."""

    number: int
    layout: Sequence[Sequence[Fragment]]
    sizes: Sequence[int]
    flat: list[Array]
    sent: int = 0
    allowed: int = EAGER

    @classmethod
    def of(
        cls, number: int, contents: Contents, arrays: Sequence[Array], sent: int = 0
    ) -> _Outgoing:
        """Return a message of which the peer has `sent` pieces."""
        types = contents.arrays.types
        flat = [array.reshape(-1) for array in arrays]
        layout, sizes = chunk_layout(types), piece_sizes(types)
        return cls(number, layout, sizes, flat, sent, max(EAGER, sent))

    @property
    def is_allowed(self) -> bool:
        """Whether the next piece may be sent."""
        return self.sent < min(self.allowed, len(self.layout))

    def next_piece(self) -> list[Buffer]:
        """Return the frame of the next piece, as buffers."""
        index = self.sent
        fragments, size = self.layout[index], self.sizes[index]
        header = frames.frame(Kind.PIECE, self.number, index, length=size)
        self.sent += 1
        buffers: list[Buffer] = [header]
        for part in fragments:
            view = as_bytes(in_array(self.flat[part.array], part)).data
            buffers.append(view)
            if padding := -len(view) % ALIGNMENT:
                buffers.append(_PADDING[padding])
        return buffers if len(fragments) <= JOINED_FRAGMENTS else [b"".join(buffers)]


@dataclass(eq=False)
class Link:
    """A connected peer; see the module. `epoll` wakes the session's thread.

    `fail` is called with the root cause when this link ends the run. `heard` is true if
    a frame has arrived since the session's thread reset it, `ended` once no more can
    arrive on the connection, `is_invalid` if the peer has broken the protocol.
    """

    peer: str
    socket: FrameSocket
    mailbox: Mailbox
    arena: Arena
    max_message: int
    epoll: select.epoll
    fail: Callable[[Cause], None]
    heard: bool = False
    ended: bool = False
    is_invalid: bool = False
    _number: int = 0
    _unacknowledged: dict[int, tuple[Contents, Sequence[Array]]] = field(
        default_factory=dict
    )
    _acknowledged: int = 0
    _outgoing: dict[int, _Outgoing] = field(default_factory=dict)
    _order_lock: threading.Lock = field(default_factory=threading.Lock)
    _advance_lock: threading.Lock = field(default_factory=threading.Lock)
    _last_received: int = 0
    _incoming: dict[int, PiecedMessage] = field(default_factory=dict)
    _filling: int = 0  # the number of the message whose piece is being received
    _credit_sent: int = 0
    _credit_wanted: int = 0  # the credit that the peer waits for, or 0
    _peer_clears: bool = False  # accept all that it sends: it wants to close
    _watch_lock: threading.Lock = field(default_factory=threading.Lock)
    _watched_events: int = 0

    # Sending.

    def send(self, contents: Contents, arrays: Sequence[Array]) -> None:
        """Send a message of C-contiguous arrays without waiting."""
        # Numbers are assigned, and headers sent, in the order of this lock.
        with self._order_lock:
            self._number += 1
            number = self._number
            self._unacknowledged[number] = contents, arrays
            # The header first: another thread sends the pieces of what is in `_outgoing`.
            self._send_header(number, contents, arrays)
        self.advance()

    def _send_header(
        self, number: int, contents: Contents, arrays: Sequence[Array]
    ) -> None:
        self.socket.put(frames.message_frame(number, contents, arrays))
        if contents.arrays.span > INLINE:
            self._outgoing[number] = _Outgoing.of(number, contents, arrays)

    def advance(self) -> None:
        """Send the pieces that can be sent now."""
        # A thread that finds the lock taken need not wait: the one that holds it looks
        # again after it has released it.
        while self._next_message() is not None:
            if not self._advance_lock.acquire(blocking=False):
                return
            try:
                while (message := self._next_message()) is not None:
                    self.socket.put(*message.next_piece())
                    if message.sent == len(message.layout):
                        del self._outgoing[message.number]
            finally:
                self._advance_lock.release()

    def _next_message(self) -> _Outgoing | None:
        """Return the first message whose next piece can be sent now."""
        if self.socket.full or self.socket.broken:
            return None
        # A copy: other threads add messages.
        return next((m for m in [*self._outgoing.values()] if m.is_allowed), None)

    @property
    def has_pending(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._outgoing or self.socket.has_queued) and not self.socket.broken

    def send_beat(
        self, wanted: int = 0, allowed: tuple[int, int] = (0, 0), flags: int = 0
    ) -> None:
        """Send a heartbeat with the credit.

        `wanted` is the credit that this node waits for, `allowed` how many pieces of a
        message the peer may send; see `frames`.
        """
        self._credit_sent = credit = self.mailbox.granted_credit(self.peer)
        fields = (credit, wanted, self._last_complete, 0, *allowed)
        self.socket.put(frames.frame(Kind.BEAT, *fields, flags=flags))

    @property
    def _last_complete(self) -> int:
        """The number up to which all messages have arrived completely."""
        return min(self._incoming, default=self._last_received + 1) - 1

    @property
    def is_delivered(self) -> bool:
        """Whether the peer has all messages that were sent to it."""
        return self._acknowledged == self._number

    def acknowledge(self, total: int, threshold: int) -> None:
        """Report that the program has received `total` bytes, if that is due.

        It is due when the peer waits for it, or when `threshold` bytes have not been
        reported; else the next heartbeat reports it.
        """
        credit_sent = self._credit_sent
        if credit_sent < self._credit_wanted or total - credit_sent >= threshold:
            self.send_beat()

    # A connection that breaks.

    def position(self) -> tuple[int, list[tuple[int, int]]]:
        """Return what the peer has to send again: see `frames.Greeting`. Called when
        the connection has ended."""
        incomplete = [(n, message.arrived) for n, message in self._incoming.items()]
        return self._last_received + 1, incomplete

    def reconnect(
        self, socket: FrameSocket, expected: int, incomplete: Mapping[int, int]
    ) -> None:
        """Go on over a new connection: send again what the peer has not received.

        Called by the session's thread when the old connection has ended. Raises
        InvalidFrame for a position that the peer cannot have.
        """
        with self._order_lock, self._advance_lock:
            if not self._acknowledged < expected <= self._number + 1:
                raise InvalidFrame("position")
            self.socket.close()
            self.socket, self._filling = socket, 0
            self._outgoing.clear()
            self.send_beat()
            for number, received in self._incoming.items():
                self.send_beat(allowed=(number, received.allowed))
            for number, (contents, arrays) in sorted(self._unacknowledged.items()):
                if number >= expected:
                    self._send_header(number, contents, arrays)
                elif number in incomplete:
                    sent = incomplete[number]
                    message = _Outgoing.of(number, contents, arrays, sent)
                    if sent >= len(message.layout):
                        raise InvalidFrame("position")
                    self._outgoing[number] = message
            self.ended = False
        self.on_woken()
        self.advance()
        self.watch()

    # The interface of mailbox.FrameReader.

    def read(self, timeout: float) -> bool:
        """Handle the next frame; see `mailbox.FrameReader`.

        When the connection has ended, all frames that the peer sent before have been
        read, a GOODBYE as well if it sent one.
        """
        if self.ended:
            # Nothing comes before the session's thread has connected again.
            self.socket.wait_for_wake(min(timeout, RECONNECT_PAUSE))
            return False
        try:
            frame = self.socket.get(timeout)
            if frame is not None:
                self._handle(frame)
            if self._outgoing:
                self.advance()
            is_filled = bool(self._filling) and self.socket.filled
            if is_filled:
                self._add_piece()
        except InvalidFrame as why:
            self.lose(f"sent an invalid frame: {why}")
            return True
        if self.socket.ended and frame is None and not is_filled:
            self.ended = True
            return True
        return frame is not None or is_filled

    def reading_stopped(self) -> None:
        """Let the session's thread serve a blocked sender; see `FrameReader`."""
        if self._is_needed:
            self.watch()

    def lose(self, what: str) -> None:
        """End the run, because the peer is lost; `what` says why."""
        self.ended = self.is_invalid = True
        self.fail(Cause(self.peer, f"seen from {self.mailbox.node}", what))

    # Receiving.

    def _handle(self, frame: Frame) -> None:
        self.heard = True
        header = frame.header
        match header.kind:
            case Kind.MESSAGE:
                self._on_message(frame)
            case Kind.PIECE:
                self._on_piece(header)
            case Kind.BEAT:
                self._on_beat(header)
            case Kind.GOODBYE:
                self.mailbox.mark_departed(self.peer)
                self.socket.finish()
            case Kind.ABORT:
                body = frames.read_text(header, frame.body)
                self.fail(frame_bodies.read_cause(body))
            case _:
                raise InvalidFrame("kind")

    def _on_message(self, frame: Frame) -> None:
        header, data = frame
        contents, payload = frames.decode_message(header, data, self.max_message)
        number = header.a
        if number != self._last_received + 1:
            raise InvalidFrame("number")
        self._last_received = number
        arrays = contents.arrays
        message: InlineMessage | PiecedMessage
        if arrays.span > INLINE:
            message = PiecedMessage(
                self.peer,
                contents,
                self.arena,
                lambda pieces: self.send_beat(allowed=(number, pieces)),
            )
            self._incoming[number] = message
        else:
            if payload:
                self.socket.keep()
            views = [
                np.ndarray(shape, dtype, payload, offset)
                for (dtype, shape), offset in zip(
                    arrays.types, arrays.offsets, strict=True
                )
            ]
            nbytes = arrays.total
            message = InlineMessage(self.peer, contents.key, nbytes, nbytes, views)
        self.mailbox.deliver(message)
        if self._peer_clears:
            message.detach()
            self.send_beat()

    def _on_piece(self, header: frames.Header) -> None:
        message = self._incoming.get(header.a)
        if message is None or header.b != message.arrived:
            raise InvalidFrame("a piece of no message")
        if header.b >= message.allowed:
            raise InvalidFrame("a piece that was not asked for")
        length, views = message.room()
        if header.length != length:
            raise InvalidFrame("length")
        self._filling = header.a
        self.socket.fill(views)

    def _add_piece(self) -> None:
        """Add the piece that has been received to its message."""
        number, self._filling = self._filling, 0
        message = self._incoming[number]
        message.add()
        if message.is_complete:
            del self._incoming[number]
            if self._peer_clears:
                self.send_beat()
        self.mailbox.notify()

    def _on_beat(self, header: frames.Header) -> None:
        self.mailbox.update_credit(self.peer, header.a)
        if header.c > self._number:
            raise InvalidFrame("an acknowledgement of what was not sent")
        if header.c > self._acknowledged:
            for number in range(self._acknowledged + 1, header.c + 1):
                self._unacknowledged.pop(number, None)
            self._acknowledged = header.c
            if self.is_delivered:
                self.mailbox.notify()
        if header.b > self._credit_sent:
            self._credit_wanted = header.b
            self.send_beat()
        message = self._outgoing.get(header.e)
        if message is not None and header.f > message.allowed:
            message.allowed = header.f
            self.advance()
        if header.flags & CLEAR:
            self._peer_clears = True
            self.mailbox.detach_all(self.peer)
            self.send_beat()

    # What wakes the session's thread.

    @property
    def _is_needed(self) -> bool:
        """Whether a sender is blocked, here or (to close) at the peer."""
        return (
            self.has_pending or self._peer_clears or self.mailbox.is_awaited(self.peer)
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
            if self._is_needed:
                events |= select.EPOLLIN
            # A socket with room is writable at once.
            if self.socket.full or (self._is_needed and self.socket.has_received):
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
        """Close the socket, and drop what was not sent."""
        self.socket.close()
        self._outgoing.clear()
        self._incoming.clear()
