"""One end of the socket between two nodes: whole frames, in order.

Any thread may send frames; one thread at a time may receive them. Sending never blocks:
frames that find no room are queued. A thread that waits for a frame spins for a moment
before it sleeps, see `FrameSocket._spin`.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from typing import Final

import numpy as np

from placer.channel.shared.frames import MAX_FRAME
from placer.memory.aligned import round_up
from placer.memory.arena import Arena

SPIN: Final = 50e-6
"""Seconds to spin before sleeping: what a reply of a peer that is awake takes."""
MAX_SPIN_SKIPS: Final = 256
"""Waits without spinning at most, after spins that were in vain."""
SLAB: Final = 1 << 20
"""Bytes of a receive buffer. Arrays of inline messages are views of it, and it is freed
with the last of them."""
BUFFER: Final = 1 << 20
"""Bytes of the socket's send buffer that are requested; the system may grant less."""


class FrameSocket:
    """A connected SOCK_SEQPACKET socket of a peer.

    Any thread may send; one thread at a time may receive. `wake` is a file descriptor
    that becomes readable to end every wait for a frame.

    `full` is true while the socket accepts no more until it is writable, `broken` once
    it accepts nothing ever again. `expects_file` is set when the next frame should
    bring a file descriptor.
    """

    def __init__(self, connection: socket.socket, wake: int, arena: Arena) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self.fd = connection.fileno()
        self.full = False
        self.broken = False
        self.expects_file = False
        self._socket = connection
        self._lock = threading.Lock()
        self._queue: deque[tuple[bytes, int | None]] = deque()
        self._file: int | None = None
        self._arena = arena
        self._buffer = self._new_slab()  # the unused rest of a slab
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._poll.register(wake, select.POLLIN)
        self._spin_skips = 0  # waits until the next spin
        self._next_spin_skips = 1  # `_spin_skips` after the next spin in vain

    # Sending.

    def put(self, *frames: bytes, file: int | None = None) -> None:
        """Send frames in order, now or when there is room; `file` goes with the last.

        Frames of one call are not interleaved with those of others. Does not wait.
        """
        with self._lock:
            for i, frame in enumerate(frames):
                fd = file if i == len(frames) - 1 else None
                if self._queue or not self._send(frame, fd):
                    self._queue.append((frame, fd))

    def flush(self) -> None:
        """Send what was queued, because the socket has become writable."""
        with self._lock:
            self.full = False
            while self._queue and self._send(*self._queue[0]):
                self._queue.popleft()

    def linger(self, until: float) -> None:
        """Send what was queued, waiting for room until the monotonic time `until`."""
        room = select.poll()
        room.register(self.fd, select.POLLOUT)
        while self._queue and not self.broken:
            left = until - time.monotonic()
            if left <= 0 or not room.poll(left * 1000):
                return
            self.flush()

    def _send(self, frame: bytes, file: int | None) -> bool:
        if self.broken:
            return True  # dropped: the thread that reads finds out why
        if self.full:
            return False
        try:
            if file is None:
                self._socket.send(frame)
            else:
                socket.send_fds(self._socket, [frame], [file])
        except BlockingIOError:
            self.full = True
            return False
        except ConnectionError:
            self.broken = True
        return True

    # Receiving.

    def get(self, timeout: float) -> memoryview[int] | None:
        """Return the next frame; None if none comes within `timeout` seconds.

        The frame is a view of a buffer that the next call overwrites, unless
        `keep_frame` is called first. An empty frame is the end of the connection.
        """
        ready = (timeout and self._spin()) or self._poll.poll(timeout * 1000)
        if all(fd != self.fd for fd, _ in ready):
            return None
        try:
            if self.expects_file:
                return self._get_with_file()
            return self._buffer[: self._socket.recv_into(self._buffer)]
        except BlockingIOError:
            return None
        except ConnectionResetError:
            # Reported once, when the peer has closed with frames unread. Frames that it
            # sent before, a GOODBYE perhaps, can still be read.
            return None

    def keep_frame(self, nbytes: int) -> None:
        """Do not overwrite the last frame, of `nbytes` bytes: arrays are views of it.

        The next frame starts after it, 64-byte aligned.
        """
        self._buffer = self._buffer[round_up(nbytes) :]
        if len(self._buffer) <= MAX_FRAME:
            self._buffer = self._new_slab()

    def _new_slab(self) -> memoryview[int]:
        return self._arena.allocate(np.uint8, (SLAB,)).data

    def _spin(self) -> list[tuple[int, int]]:
        """Poll without sleeping for `SPIN` seconds; return the events, if any."""
        # Waking a thread that sleeps in poll takes the kernel longer than a peer on
        # another core takes to reply to a small message, so polling first shortens the
        # round trip. It only helps when the peer is running: where it computes, or has
        # to share this core, spinning delays everybody. So each spin in vain doubles
        # the number of waits that sleep at once, and a successful one resets it.
        if self._spin_skips:
            self._spin_skips -= 1
            return []
        until = time.perf_counter() + SPIN
        while not (ready := self._poll.poll(0)):
            if time.perf_counter() > until:
                self._spin_skips = self._next_spin_skips
                self._next_spin_skips = min(2 * self._next_spin_skips, MAX_SPIN_SKIPS)
                return []
        self._next_spin_skips = 1
        return ready

    def _get_with_file(self) -> memoryview[int]:
        data, files, _, _ = socket.recv_fds(
            self._socket, MAX_FRAME + 1, 1, socket.MSG_CMSG_CLOEXEC
        )
        self._file = files[0] if files else None
        return memoryview(data)

    def take_file(self) -> int | None:
        """Return the file descriptor of the last frame; the caller closes it."""
        file, self._file = self._file, None
        self.expects_file = False
        return file

    def close(self) -> None:
        """Close the socket; frames that it accepted still reach the peer."""
        self.broken = True
        file = self.take_file()
        if file is not None:
            os.close(file)
        self._socket.close()
