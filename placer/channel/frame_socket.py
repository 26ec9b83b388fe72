"""One end of the connection between two nodes: an ordered stream of frames.

Any thread may send frames; one thread at a time may receive them. Sending never blocks: data
that does not fit into the socket is queued, as views of the sent arrays. Small frames are received
together into a buffer. The bytes of a piece are received directly into the arrays of its message.
A frame on a unix socket may carry a file descriptor.
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
"""Bytes of the receive buffer before the connection has identified itself."""
MAX_HELLO: Final = 64 << 10
"""The largest frame in bytes before the connection has identified itself."""
BUFFER: Final = 256 << 10
"""Bytes of a receive buffer after that. Arrays of inline messages are views of the buffer. It is
freed with the last view."""
AHEAD: Final = 4 << 10
"""Bytes to receive into the buffer after the end of a piece."""
LOW_WATER: Final = 512 << 10
"""If at least this many bytes of a piece are missing, wait for this many before receiving."""
MAX_BUFFERS: Final = 512
"""The largest number of buffers in one system call."""
MAX_FILES: Final = 16
"""The largest number of received file descriptors that were not taken yet."""

_FILE: Final = array.array("i", [0]).itemsize
_FILE_SPACE: Final = socket.CMSG_SPACE(_FILE)

Buffer = bytes | memoryview


class FrameSocket:
    """A connected stream socket to a peer.

    Attributes:
        fd: the file descriptor of the socket.
        is_unix: whether both processes are on one machine, and can pass memory.
        full: whether the socket accepts no data until it is writable.
        broken: whether the socket will never accept data again.
        ended: whether no more data will arrive.
        error: the error that ended the connection, if the system or TLS reported one.
        received: the number of bytes that have arrived.
    """

    def __init__(self, connection: socket.socket | TlsStream, arena: Arena) -> None:
        self.fd = connection.fileno()
        self.is_unix = connection.family == socket.AF_UNIX
        self.full = self.broken = self.ended = self._finishes = False
        self.error: OSError | None = None
        self.received = 0
        self._socket = connection
        self._epoll: select.epoll | None = None  # reports events of the socket
        self._lock = threading.RLock()
        self._queue: deque[Buffer] = deque()
        self._files_to_send: deque[tuple[Buffer, int]] = deque()
        self._files: deque[int] = deque()  # received, not taken yet
        self._arena = arena
        self._buffer = arena.allocate(np.uint8, (FIRST_BUFFER,)).data
        self._max_frame = MAX_HELLO
        self._floor = 0  # data below this offset is in use
        self._start = self._stop = 0  # the range of unhandled bytes
        self._targets: deque[memoryview[int]] = deque()
        self._low_water = (
            1  # the number of bytes at which the system reports the socket
        )

    @property
    def peer_address(self) -> str:
        """The address of the peer, for messages."""
        if self.is_unix:
            return "this machine"
        try:
            host, port, *_ = self._socket.getpeername()
        except OSError:  # the peer has reset the connection
            return "an unknown address"
        return show_endpoint((host, port))

    @property
    def has_hung_up(self) -> bool:
        """Whether the peer sends nothing more; its last frames may not be received yet."""
        poll = select.poll()
        poll.register(self.fd, select.POLLRDHUP)
        return bool(poll.poll(0))

    def serve(self, epoll: select.epoll) -> None:
        """From now on, let `epoll` report received data, and room for queued data. The
        peer has identified itself: frames of any length are accepted."""
        with self._lock:
            self._max_frame = MAX_FRAME
            self._epoll = epoll
            # The socket is reported as writable at once, so that frames already in the buffer are
            # handled.
            self.full = True
            epoll.register(self.fd, select.EPOLLIN | select.EPOLLOUT)

    def _set_full(self, full: bool) -> None:
        """Note whether the socket is full; called with the lock held."""
        if full != self.full:
            self.full = full
            if self._epoll is not None:
                out = select.EPOLLOUT if full else 0
                self._epoll.modify(self.fd, select.EPOLLIN | out)

    def leave(self) -> None:
        with self._lock:
            if self._epoll is not None:
                self._epoll.unregister(self.fd)
                self._epoll = None

    # Sending.

    @property
    def has_queued(self) -> bool:
        return bool(self._queue) and not self.broken

    def put(self, *buffers: Buffer, file: int | None = None) -> None:
        """Send buffers in order, now or when the socket has room. Does not wait. The
        buffers of one call are not interleaved with other data. A file descriptor goes
        with the first buffer, and must stay open until it is sent."""
        with self._lock:
            if self.broken:
                return
            self._queue.extend(buffers)
            if file is not None:
                self._files_to_send.append((buffers[0], file))
            if not self.full:
                self._send()

    def flush(self) -> None:
        """Send queued data, because the socket has become writable."""
        with self._lock:
            self._set_full(False)
            if not self.broken:
                self._send()

    def finish(self) -> None:
        """Tell the peer that no data follows the queued data. Otherwise, a peer that
        closes its socket with unread bytes would discard its own unsent data."""
        with self._lock:
            self._finishes = True
            if not self._queue:
                self._shut()

    def _shut(self) -> None:
        """Stop sending; called with the lock held."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        self.broken = True

    def abandon(self) -> None:
        """End the connection in both directions, so that the reading thread notices its end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def linger(self, until: float) -> None:
        """Send queued data, waiting for room until the monotonic time `until`."""
        while self.has_queued and self._wait(select.POLLOUT, until):
            self.flush()

    def _wait(self, event: int, until: float) -> bool:
        """Wait for an event until a monotonic time; return True if the event occurred."""
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
                self.broken = True  # the reading thread finds the reason
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
        """Whether all bytes requested by `fill` have arrived."""
        return not self._targets

    @property
    def holds_bytes(self) -> bool:
        """Whether received bytes are buffered here, which the system no longer reports."""
        return not isinstance(self._socket, socket.socket) and self._socket.holds_bytes

    def receive(self) -> bool:
        """Receive available data, as much as fits; return True if more may be
        available. Raises InvalidFrame for unexpected files."""
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
        """Note that bytes have arrived; return how many follow the targets."""
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
        """Let the system report the socket once a large part of a piece has arrived."""
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
            raise InvalidFrame("unexpected files")

    def next(self) -> tuple[Frame, memoryview[int]] | None:
        """Return the next complete frame and its payload, or None.

        Returns None until the bytes requested by `fill` have arrived. The payload is a view
        of a buffer that the next `receive` overwrites, unless `keep` is called first.

        Raises InvalidFrame for malformed data.
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
        """Receive the bytes that follow a `Piece` frame into views of the same total length."""
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
        """Keep the last frame in the buffer: arrays are views of it."""
        self._floor = self._start

    def take_file(self) -> int | None:
        """Return the first received file descriptor; the caller closes it."""
        return self._files.popleft() if self._files else None

    def _make_room(self, needed: int) -> None:
        """Ensure room for `needed` bytes from the start position on."""
        if len(self._buffer) - self._start >= needed:
            return
        rest = self._buffer[self._start : self._stop]
        least = BUFFER if self._max_frame == MAX_FRAME else FIRST_BUFFER
        buffer = self._arena.allocate(np.uint8, (max(least, needed),)).data
        buffer[: len(rest)] = rest
        self._buffer, self._floor = buffer, 0
        self._start, self._stop = 0, len(rest)

    def drain(self, until: float) -> None:
        """Receive and drop data until the peer has finished, or until monotonic time
        `until`. No other thread reads any more."""
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
            self.broken = self.ended = True
            self._queue.clear()
            self.leave()
        for file in self._files:
            os.close(file)
        self._files.clear()
        self._socket.close()
