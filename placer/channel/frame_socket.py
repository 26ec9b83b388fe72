"""One end of the connection between two nodes: frames, in order, on a stream of bytes.

Any thread may send frames; one thread at a time may receive them. Sending never blocks:
what finds no room is queued, as views of the arrays that are sent. Small frames are
received together into a buffer; the bytes of a piece are received where its message wants
it. Over a unix socket a frame may bring a file descriptor.
"""

from __future__ import annotations

import array
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from placer.channel import frames
from placer.channel.endpoint import show_endpoint
from placer.channel.frames import MAX_FRAME, Frame, InvalidFrame
from placer.system.memory.arena import Arena

if TYPE_CHECKING:
    from placer.channel.tls import TlsStream

FIRST_BUFFER: Final = 4 << 10
"""Bytes of the receive buffer of a connection that has not identified itself."""
MAX_HELLO: Final = 64 << 10
"""Bytes of a frame of such a connection at most."""
BUFFER: Final = 256 << 10
"""Bytes of a receive buffer after that. Arrays of inline messages are views of it, and
it is freed with the last of them."""
AHEAD: Final = 4 << 10
"""Bytes to receive into the buffer behind the rest of a piece."""
LOW_WATER: Final = 512 << 10
"""Bytes of a piece to wait for before they are received, if so many are to come."""
MAX_BUFFERS: Final = 512
"""Buffers that one call of the system sends or receives at most."""
MAX_FILES: Final = 16
"""File descriptors that arrived and were not taken, at most."""

_FILE: Final = array.array("i", [0]).itemsize
_FILE_SPACE: Final = socket.CMSG_SPACE(_FILE)

Buffer = bytes | memoryview


class FrameSocket:
    """A connected stream socket of a peer.

    Attributes:
        fd: the file descriptor of the socket.
        is_unix: whether both processes are on one machine, and can pass memory.
        full: whether the socket accepts no more until it is writable.
        broken: whether it accepts nothing ever again.
        ended: whether nothing arrives any more.
        error: why it ended, if the system or TLS said why.
        received: the number of bytes that have arrived.
    """

    def __init__(self, connection: socket.socket | TlsStream, arena: Arena) -> None:
        self.fd = connection.fileno()
        self.is_unix = connection.family == socket.AF_UNIX
        self.full = self.broken = self.ended = self._finishes = False
        self.error: OSError | None = None
        self.received = 0
        self._socket = connection
        self._epoll: select.epoll | None = None  # that reports what may be done
        self._lock = threading.RLock()
        self._queue: deque[Buffer] = deque()
        self._files_to_send: deque[tuple[Buffer, int]] = deque()
        self._files: deque[int] = deque()  # that have arrived
        self._arena = arena
        self._buffer = arena.allocate(np.uint8, (FIRST_BUFFER,)).data
        self._max_frame = MAX_HELLO
        self._floor = 0  # what is below is in use
        self._start = self._stop = 0  # of the bytes that have not been handled
        self._targets: deque[memoryview[int]] = deque()
        self._low_water = 1  # the bytes that make the system report the socket

    @property
    def peer_address(self) -> str:
        """Where the other end is, for messages."""
        if self.is_unix:
            return "this machine"
        try:
            host, port, *_ = self._socket.getpeername()
        except OSError:  # the peer has reset the connection
            return "an unknown address"
        return show_endpoint((host, port))

    def serve(self, epoll: select.epoll) -> None:
        """Have `epoll` report from now on what has arrived, and room for what is queued.

        The peer has identified itself: frames of any length are accepted.
        """
        with self._lock:
            self._max_frame = MAX_FRAME
            self._epoll = epoll
            # Writable at once: what `next` has to return already is looked at then.
            self.full = True
            epoll.register(self.fd, select.EPOLLIN | select.EPOLLOUT)

    def _set_full(self, full: bool) -> None:
        """Note whether the socket has room; called with the lock held."""
        if full != self.full:
            self.full = full
            if self._epoll is not None:
                out = select.EPOLLOUT if full else 0
                self._epoll.modify(self.fd, select.EPOLLIN | out)

    def leave(self) -> None:
        """Have `epoll` report nothing more."""
        with self._lock:
            if self._epoll is not None:
                self._epoll.unregister(self.fd)
                self._epoll = None

    # Sending.

    @property
    def has_queued(self) -> bool:
        """Whether something waits for room in the socket."""
        return bool(self._queue) and not self.broken

    def put(self, *buffers: Buffer, file: int | None = None) -> None:
        """Send buffers in order, now or when there is room; frames of one call are not
        interleaved with those of others. A file descriptor goes with the first buffer,
        and stays open until it is sent. Does not wait."""
        with self._lock:
            if self.broken:
                return
            self._queue.extend(buffers)
            if file is not None:
                self._files_to_send.append((buffers[0], file))
            if not self.full:
                self._send()

    def flush(self) -> None:
        """Send what was queued, because the socket has become writable."""
        with self._lock:
            self._set_full(False)
            if not self.broken:
                self._send()

    def finish(self) -> None:
        """Tell the peer that nothing follows what is queued. A peer that has unread bytes
        when it closes its socket would otherwise discard what it has not sent yet."""
        with self._lock:
            self._finishes = True
            if not self._queue:
                self._shut()

    def _shut(self) -> None:
        """Send nothing any more; called with the lock held."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self.broken = True

    def abandon(self) -> None:
        """End the connection in both directions, so that the thread that reads it finds
        its end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def linger(self, until: float) -> None:
        """Send what was queued, waiting for room until the monotonic time `until`."""
        while self.has_queued and self._wait(select.POLLOUT, until):
            self.flush()

    def _wait(self, event: int, until: float) -> bool:
        """Wait for an event until a monotonic time; return whether it has come."""
        poll = select.poll()
        poll.register(self.fd, event)
        left = until - time.monotonic()
        return left > 0 and bool(poll.poll(left * 1000))

    def _send(self) -> None:
        queue = self._queue
        while queue:
            first = queue[0]
            buffers: Sequence[Buffer] = (first,)
            try:
                if self._files_to_send:
                    sent = self._send_with_files()
                else:
                    buffers = [queue[i] for i in range(min(len(queue), MAX_BUFFERS))]
                    sent = self._socket.sendmsg(buffers)
            except BlockingIOError:
                self._set_full(True)
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
        if self._finishes:
            self._shut()

    def _send_with_files(self) -> int:
        """Send the first buffer, with its file if it has one."""
        buffer, (with_file, file) = self._queue[0], self._files_to_send[0]
        if buffer is not with_file:
            return self._socket.send(buffer)
        assert isinstance(self._socket, socket.socket)
        sent = socket.send_fds(self._socket, [buffer], [file])
        self._files_to_send.popleft()
        return sent

    # Receiving.

    @property
    def filled(self) -> bool:
        """Whether the bytes that were asked for by `fill` have arrived."""
        return not self._targets

    @property
    def holds_bytes(self) -> bool:
        """Whether bytes were received that the system does not report any more."""
        return not isinstance(self._socket, socket.socket) and self._socket.holds_bytes

    def receive(self) -> bool:
        """Receive what has arrived, as much as fits; whether more may be there.

        Raises InvalidFrame for files that no frame brings.
        """
        targets = self._targets
        if targets:
            views = [*targets][: MAX_BUFFERS - 1]
            if len(views) == len(targets):
                views.append(self._buffer[self._stop : self._stop + AHEAD])
            room = sum(map(len, views))
        else:
            views = [self._buffer[self._stop :]]
            room = len(views[0])
        try:
            count, messages, _, _ = self._socket.recvmsg_into(
                views, _FILE_SPACE, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError as error:
            self.error = error
            count, messages = 0, []
        if not count:
            self.ended = True
            self.leave()
            return False
        if messages:
            self._keep_files(messages)
        self.received += count
        self._stop += self._fill_targets(count)
        self._set_low_water()
        return count == room

    def _fill_targets(self, count: int) -> int:
        """Note that bytes have arrived; return how many are behind the targets."""
        targets = self._targets
        while targets and count:
            first = targets[0]
            if count < len(first):
                targets[0] = first[count:]
                return 0
            count -= len(first)
            targets.popleft()
        return count

    def _set_low_water(self) -> None:
        """Have the system report the socket once much of the rest of a piece is there."""
        if not isinstance(self._socket, socket.socket) or self.is_unix:
            return
        rest = sum(map(len, self._targets))
        low_water = LOW_WATER if rest >= LOW_WATER else 1
        if low_water != self._low_water:
            self._low_water = low_water
            with suppress(OSError):  # a hint only
                self._socket.setsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water
                )

    def _keep_files(self, messages: Sequence[tuple[int, int, bytes]]) -> None:
        for _, kind, data in messages:
            if kind == socket.SCM_RIGHTS:
                whole = data[: len(data) // _FILE * _FILE]
                self._files.extend(array.array("i", whole))
        if len(self._files) > MAX_FILES:
            raise InvalidFrame("files that no frame brings")

    def next(self) -> tuple[Frame, memoryview[int]] | None:
        """Return the next frame that has arrived whole, and its payload; None if there is
        none, or until the bytes that were asked for by `fill` have arrived.

        The payload is a view of a buffer that the next call of `receive` overwrites,
        unless `keep` is called first. Raises InvalidFrame for what is no frame.
        """
        if not self.filled:
            return None
        arrived = self._buffer[self._start : self._stop]
        needed = frames.size_of(arrived, self._max_frame)
        if needed <= len(arrived):
            self._start += needed
            return frames.decode(arrived[:needed])
        if not arrived:
            self._start = self._stop = self._floor
        self._make_room(max(needed, AHEAD))
        return None

    def fill(self, views: Sequence[memoryview[int]]) -> None:
        """Receive the bytes that follow a `Piece` into views, which have its length
        together."""
        self._targets = deque(views)
        while self._targets and self._start < self._stop:
            first = self._targets[0]
            part = self._buffer[self._start : self._stop][: len(first)]
            first[: len(part)] = part
            self._start += len(part)
            self._fill_targets(len(part))
        if self._targets:  # the next frame starts aligned
            self._start = self._stop = self._floor
            self._make_room(AHEAD)
            self._set_low_water()

    def keep(self) -> None:
        """Do not overwrite the last frame: arrays are views of it."""
        self._floor = self._start

    def take_file(self) -> int | None:
        """Return the first file descriptor that has arrived; the caller closes it."""
        return self._files.popleft() if self._files else None

    def _make_room(self, needed: int) -> None:
        """Ensure that the buffer has room for `needed` bytes from the start on."""
        if len(self._buffer) - self._start >= needed:
            return
        rest = self._buffer[self._start : self._stop]
        least = BUFFER if self._max_frame == MAX_FRAME else FIRST_BUFFER
        buffer = self._arena.allocate(np.uint8, (max(least, needed),)).data
        buffer[: len(rest)] = rest
        self._buffer, self._floor = buffer, 0
        self._start, self._stop = 0, len(rest)

    def drain(self, until: float) -> None:
        """Receive and drop what arrives, until the peer has finished too, or until the
        monotonic time `until`; nobody else reads any more."""
        rest = memoryview(bytearray(BUFFER))
        while not self.ended and self._wait(select.POLLIN, until):
            try:
                self.ended = not self._socket.recvmsg_into([rest])[0]
            except BlockingIOError:
                continue
            except OSError:
                self.ended = True

    def close(self) -> None:
        """Close the socket; frames that it accepted still reach the peer."""
        with self._lock:
            self.broken = True
            self._queue.clear()
            self.leave()
        for file in self._files:
            os.close(file)
        self._files.clear()
        self._socket.close()
