"""One end of the connection between two nodes: frames, in order, on a stream of bytes.

Any thread may send frames; one thread at a time may receive them. Sending never blocks:
what finds no room is queued, as views of the arrays that are sent. Small frames are
received together into a buffer; the body of a PIECE is received where its message wants
it.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np

from placer.channel.tcp.frames import (
    HEADER_BYTES,
    MAX_BODY,
    Header,
    Kind,
    read_header,
)
from placer.memory.arena import Arena

FIRST_BUFFER: Final = 4 << 10
"""Bytes of the receive buffer of a connection that has not identified itself."""
MAX_HELLO: Final = 64 << 10
"""Bytes of the body of a frame of such a connection at most."""
BUFFER: Final = 256 << 10
"""Bytes of a receive buffer after that. Arrays of inline messages are views of it, and
it is freed with the last of them."""
AHEAD: Final = 4 << 10
"""Bytes to receive into the buffer behind the rest of a piece."""
MAX_BUFFERS: Final = 512
"""Buffers that one call of the system sends or receives at most."""

Buffer = bytes | memoryview


class Frame(NamedTuple):
    """A frame that has arrived, as a view of a buffer that the next call of `get`
    overwrites, unless `keep` is called first. That of a PIECE is its header only."""

    header: Header
    data: memoryview[int]

    @property
    def body(self) -> memoryview[int]:
        """The body of the frame."""
        return self.data[HEADER_BYTES:]


class FrameSocket:
    """A connected stream socket of a peer.

    `wake` is a file descriptor that becomes readable to end every wait for a frame.

    Attributes:
        full: whether the socket accepts no more until it is writable.
        broken: whether it accepts nothing ever again.
        ended: whether nothing arrives any more.
        polls_out: whether a thread that waits for a frame sends what is queued, too.
        filled: whether the bytes that were asked for by `fill` have arrived.
    """

    def __init__(self, connection: socket.socket, wake: int, arena: Arena) -> None:
        connection.setblocking(False)
        self.fd = connection.fileno()
        self.full = self.broken = self.ended = False
        self.polls_out = self._polled_out = False
        self.filled = True
        self._socket, self._wake = connection, wake
        self._lock = threading.Lock()
        self._queue: deque[Buffer] = deque()
        self._arena = arena
        self._buffer = arena.allocate(np.uint8, (FIRST_BUFFER,)).data
        self._max_body = MAX_HELLO
        self._floor = 0  # what is below is in use
        self._start = self._end = 0  # of the bytes that have not been handled
        self._incomplete_end = -1  # `_end` when they were found to be part of a frame
        self._targets: deque[memoryview[int]] = deque()
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._poll.register(wake, select.POLLIN)

    # Sending.

    @property
    def has_queued(self) -> bool:
        """Whether something waits for room in the socket."""
        return bool(self._queue) and not self.broken

    def put(self, *buffers: Buffer) -> None:
        """Send buffers in order, now or when there is room; frames of one call are not
        interleaved with those of others. Does not wait."""
        with self._lock:
            if self.broken:
                return
            self._queue.extend(buffers)
            if not self.full:
                self._send()

    def flush(self) -> None:
        """Send what was queued, because the socket has become writable."""
        with self._lock:
            self.full = False
            self._send()

    def finish(self) -> None:
        """Tell the peer that nothing follows. A peer that has unread bytes when it closes
        its socket would otherwise discard what it has not sent yet."""
        with self._lock, suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self.broken = True

    def abandon(self) -> None:
        """End the connection in both directions, so that the thread that reads it finds
        its end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def linger(self, until: float) -> None:
        """Send what was queued, waiting for room until the monotonic time `until`."""
        room = select.poll()
        room.register(self.fd, select.POLLOUT)
        while self.has_queued:
            left = until - time.monotonic()
            if left <= 0 or not room.poll(left * 1000):
                return
            self.flush()

    def _send(self) -> None:
        queue = self._queue
        while queue:
            count = min(len(queue), MAX_BUFFERS)
            buffers = [queue[i] for i in range(count)] if count > 1 else [queue[0]]
            try:
                sent = self._socket.sendmsg(buffers)
            except BlockingIOError:
                self.full = True
                return
            except OSError:
                self.broken = True  # the thread that reads finds out why
                queue.clear()
                return
            for buffer in buffers:
                if sent < len(buffer):
                    queue[0] = memoryview(buffer)[sent:]
                    break
                sent -= len(buffer)
                queue.popleft()

    # Receiving.

    def get(self, timeout: float) -> Frame | None:
        """Return the next frame; None if none comes within `timeout` seconds, or once
        the bytes that were asked for by `fill` have arrived.

        Raises InvalidFrame for a header that no frame has.
        """
        until = None
        while True:
            if not self._targets:
                if not self.filled:
                    self.filled = True
                    return None
                if (frame := self._parse()) is not None:
                    return frame
            if self.ended:
                return None
            if until is None:
                until = time.monotonic() + timeout
                left = timeout
            else:
                left = max(0.0, until - time.monotonic())
            events = self._wait(left)
            if events & select.POLLOUT:
                self.flush()
            if not events & ~select.POLLOUT or not self._receive():
                return None

    def _wait(self, timeout: float) -> int:
        """Wait until bytes have arrived, or until there is room for what is queued;
        return the events of the socket."""
        self.polls_out = polls_out = self.full
        if polls_out != self._polled_out:
            self._polled_out = polls_out
            out = select.POLLOUT if polls_out else 0
            self._poll.modify(self.fd, select.POLLIN | out)
        try:
            ready = self._poll.poll(timeout * 1000)
        finally:
            self.polls_out = False
        return next((events for fd, events in ready if fd == self.fd), 0)

    def wait_for_wake(self, timeout: float) -> None:
        """Wait for `timeout` seconds, or until a failure or the end of the run."""
        if timeout > 0:
            wake = select.poll()
            wake.register(self._wake, select.POLLIN)
            wake.poll(timeout * 1000)

    @property
    def has_received(self) -> bool:
        """Whether bytes were received that `get` has not looked at: the system does not
        report the socket as readable for them."""
        return self._start < self._end != self._incomplete_end

    def fill(self, views: Sequence[memoryview[int]]) -> None:
        """Receive the body of a PIECE into views, which have its length together.

        `filled` is true once it has arrived, now or when `get` returns None.
        """
        targets = self._targets = deque(views)
        while targets and self._start < self._end:
            first = targets[0]
            count = min(len(first), self._end - self._start)
            first[:count] = self._buffer[self._start : self._start + count]
            self._start += count
            if count < len(first):
                targets[0] = first[count:]
            else:
                targets.popleft()
        self.filled = not targets
        if targets:  # the next frame starts aligned
            self._start = self._end = self._floor
            self._make_room(AHEAD)

    def trust(self) -> None:
        """Accept frames of any length: the peer has identified itself."""
        self._max_body = MAX_BODY

    def keep(self) -> None:
        """Do not overwrite the last frame: arrays are views of it."""
        self._floor = self._start

    def _parse(self) -> Frame | None:
        """Return the next frame in the buffer, if all of it is there."""
        start, available = self._start, self._end - self._start
        needed = HEADER_BYTES
        if available >= needed:
            header = read_header(self._buffer[start : start + needed], self._max_body)
            if header.kind is not Kind.PIECE:
                needed += header.length
            if available >= needed:
                self._start += needed
                return Frame(header, self._buffer[start : self._start])
        if start == self._end:
            self._start = self._end = self._floor
        self._make_room(max(needed, AHEAD))
        self._incomplete_end = self._end
        return None

    def _make_room(self, needed: int) -> None:
        """Ensure that the buffer has room for `needed` bytes from the start on."""
        if len(self._buffer) - self._start >= needed:
            return
        rest = self._buffer[self._start : self._end]
        least = BUFFER if self._max_body == MAX_BODY else FIRST_BUFFER
        buffer = self._arena.allocate(np.uint8, (max(least, needed),)).data
        buffer[: len(rest)] = rest
        self._buffer, self._floor = buffer, 0
        self._start, self._end = 0, len(rest)

    def _receive(self) -> bool:
        """Receive what has arrived; return whether anything has."""
        targets = self._targets
        try:
            if targets:
                ahead = self._buffer[self._end : self._end + AHEAD]
                views = [*targets][: MAX_BUFFERS - 1]
                if len(views) == len(targets):
                    views.append(ahead)
                count = self._socket.recvmsg_into(views)[0]
            else:
                count = self._socket.recv_into(self._buffer[self._end :])
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        if not count:
            self.ended = True
            return True
        while targets and count:
            first = targets[0]
            if count < len(first):
                targets[0] = first[count:]
                return True
            count -= len(first)
            targets.popleft()
        self._end += count
        return True

    def drain(self, until: float) -> None:
        """Receive and drop what arrives, until the peer has finished too, or until the
        monotonic time `until`; nobody else reads any more."""
        ready = select.poll()
        ready.register(self.fd, select.POLLIN)
        rest = bytearray(BUFFER)
        while not self.ended and (left := until - time.monotonic()) > 0:
            if not ready.poll(left * 1000):
                return
            try:
                self.ended = not self._socket.recv_into(rest)
            except BlockingIOError:
                continue
            except OSError:
                self.ended = True

    def close(self) -> None:
        """Close the socket; frames that it accepted still reach the peer."""
        with self._lock:
            self.broken = True
            self._queue.clear()
        self._socket.close()
