"""One end of the socket between two nodes: whole frames, in order, without blocking.

Any thread may put frames; one at a time may get them. A thread that waits for a frame
first looks again and again for a moment, for a reply that is on its way from another
core is seen sooner so than by being woken. Where that does not help, because the two
share a core or the peer computes, it is tried ever more rarely.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import deque
from typing import Final

import numpy as np

from placer.channel.shared.frames import MAX_FRAME
from placer.memory.arena import ALIGNMENT, Arena

LOOK: Final = 50e-6
"""Seconds to look before sleeping: what an answer takes from a peer that is awake."""
RARELY: Final = 256
"""Of so many waits one looks, when looking has not helped."""
SLAB: Final = 1 << 20
"""Frames whose arrays are kept lie in memory of that size, which goes with the last."""
BUFFER: Final = 1 << 20
"""What the system is asked to keep for the peer; it has its own limits."""

_INT: Final = struct.Struct("i")


class Stream:
    """A connected socket; `wake` is a descriptor that ends every wait for a frame.

    `full` says that the socket takes no more until it is writable, `broken` that it
    takes nothing any more. `file_comes` has the next frame looked at for a file.
    """

    def __init__(self, connection: socket.socket, wake: int, arena: Arena) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self.fd = connection.fileno()
        self.full = False
        self.broken = False
        self.file_comes = False
        self._socket = connection
        self._lock = threading.Lock()
        self._kept: deque[tuple[bytes, int | None]] = deque()
        self._file: int | None = None
        self._arena = arena
        self._buffer = self._slab()  # what is left of one
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._poll.register(wake, select.POLLIN)
        self._skip = 0  # waits that do not look
        self._failed = 1  # how many that will be after the next look in vain

    # Sending.

    def put(self, *frames: bytes, file: int | None = None) -> None:
        """Send frames, now or when there is room; `file` goes with the last."""
        with self._lock:
            for i, frame in enumerate(frames):
                fd = file if i == len(frames) - 1 else None
                if self._kept or not self._send(frame, fd):
                    self._kept.append((frame, fd))

    def offer(self, frame: bytes) -> bool:
        """Send a frame if there is room for it now."""
        with self._lock:
            return not self._kept and self._send(frame, None)

    def flush(self) -> None:
        """There may be room again: send what was kept."""
        with self._lock:
            self.full = False
            while self._kept and self._send(*self._kept[0]):
                self._kept.popleft()

    def linger(self, until: float) -> None:
        """Send what was kept, waiting for room up to a monotonic time."""
        room = select.poll()
        room.register(self.fd, select.POLLOUT)
        while self._kept and not self.broken:
            left = until - time.monotonic()
            if left <= 0 or not room.poll(left * 1000):
                return
            self.flush()

    def _send(self, frame: bytes, file: int | None) -> bool:
        if self.broken:
            return True  # to nobody; reading tells why
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
        """The next frame, waiting up to `timeout` seconds; None when none came.

        It lies in a buffer that the next call uses again, unless it is told to `keep`
        it. An empty one is the end.
        """
        found = (timeout and self._look()) or self._poll.poll(timeout * 1000)
        if all(fd != self.fd for fd, _ in found):
            return None
        try:
            if self.file_comes:
                return self._get_with_file()
            return self._buffer[: self._socket.recv_into(self._buffer)]
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return None  # told once; what the peer had sent before still comes

    def keep(self, nbytes: int) -> None:
        """Leave the frame of so many bytes that came last where it is.

        Frames begin 64-byte aligned.
        """
        self._buffer = self._buffer[-(-nbytes // ALIGNMENT) * ALIGNMENT :]
        if len(self._buffer) <= MAX_FRAME:
            self._buffer = self._slab()

    def _slab(self) -> memoryview[int]:
        return self._arena.take(np.uint8, (SLAB,)).data

    def _look(self) -> list[tuple[int, int]]:
        if self._skip:
            self._skip -= 1
            return []
        until = time.perf_counter() + LOOK
        while not (found := self._poll.poll(0)):
            if time.perf_counter() > until:
                self._skip = self._failed
                self._failed = min(2 * self._failed, RARELY)
                return []
        self._failed = 1
        return found

    def _get_with_file(self) -> memoryview[int]:
        length, ancillary, _, _ = self._socket.recvmsg_into(
            [self._buffer], socket.CMSG_SPACE(_INT.size), socket.MSG_CMSG_CLOEXEC
        )
        files = [
            fd
            for level, kind, data in ancillary
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (fd,) in _INT.iter_unpack(data[: len(data) // _INT.size * _INT.size])
        ]
        self._file = files.pop() if files else None
        for fd in files:  # there is room for more than one
            os.close(fd)
        return self._buffer[:length]

    def take_file(self) -> int | None:
        """The descriptor that came with the last frame; the caller's to close."""
        file, self._file = self._file, None
        self.file_comes = False
        return file

    def close(self) -> None:
        """Close the socket; what was sent still reaches the peer."""
        self.broken = True
        file = self.take_file()
        if file is not None:
            os.close(file)
        self._socket.close()
