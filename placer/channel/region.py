"""Anonymous shared memory: mapped `memfd` files, passed over a unix socket.

The size of a file is sealed before another process receives it. If a process could truncate the
file, SIGBUS would kill every process that reads the mapping. Only the process that created the
memory has a writable mapping.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

import numpy as np

from placer.channel.frames import InvalidFrame, Reference
from placer.channel.types import Array, Bytes
from placer.errors import RunError
from placer.system.memory.aligned import address_of
from placer.system.memory.limit import available_nbytes

_FUTURE_WRITE: Final = (
    0x10  # F_SEAL_FUTURE_WRITE of Linux 5.1, which Python does not define
)


@lru_cache
def is_supported() -> bool:
    """Return True if this process can create shared memory. This is tried once, because
    a sandbox may refuse the system calls."""
    needed = ((os, "memfd_create"), (fcntl, "F_ADD_SEALS"))
    if not all(hasattr(module, name) for module, name in needed):
        return False
    try:
        Region(0, 1, "a test of shared memory").close()
    except RunError:
        return False
    return True


class Region:
    """Shared memory of this process.

    Attributes:
        number: the number of the memory, by which peers refer to it.
        nbytes: its size in bytes.
        fd: the file descriptor.
        array: the whole memory.
        start: the address of the memory.

    Raises RunError if the system cannot provide `nbytes` bytes; `what` names the node in the
    error.
    """

    def __init__(self, number: int, nbytes: int, what: str) -> None:
        self.number = number
        self.nbytes = nbytes
        # The system overcommits: it would grant more than it has, and kill a process that writes
        # to the memory.
        available = available_nbytes()
        if nbytes > available:
            raise RunError(
                f"{what}: {nbytes} bytes of shared memory are needed, but only {available} "
                "are available"
            )
        self.fd = -1
        try:
            self.fd = os.memfd_create("placer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.truncate(self.fd, nbytes)
            mapping = mmap.mmap(self.fd, nbytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
            # Older kernels lack this seal; `attach` maps read-only as well.
            with suppress(OSError):
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _FUTURE_WRITE)
        except (OSError, OverflowError, ValueError) as error:
            if self.fd >= 0:
                os.close(self.fd)
            raise RunError(
                f"{what}: cannot create {nbytes} bytes of shared memory: {error}"
            ) from None
        self.array: Bytes = np.frombuffer(mapping, np.uint8)
        self.start = address_of(self.array)

    def close(self) -> None:
        """Close the file descriptor; the memory is freed with its last view."""
        os.close(self.fd)


def attach(fd: int, nbytes: int) -> Bytes:
    """Map memory of a peer read-only. This closes the file descriptor. Raises
    InvalidFrame for a file that is not sealed memory of at least `nbytes` bytes."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK:
            raise InvalidFrame("shared memory: the size is not sealed")
        if not 0 < nbytes <= os.fstat(fd).st_size:
            raise InvalidFrame(f"shared memory: smaller than {nbytes} bytes")
        mapping = mmap.mmap(fd, nbytes, prot=mmap.PROT_READ)
    except (OSError, OverflowError) as error:
        raise InvalidFrame(f"shared memory: cannot be mapped: {error}") from None
    finally:
        os.close(fd)
    return np.frombuffer(mapping, np.uint8)


class Regions:
    """The shared memory of a node, searchable by address. Safe to use from several threads.

    Attributes:
        by_number: the regions, numbered from 1.
    """

    def __init__(self) -> None:
        self.by_number: dict[int, Region] = {}
        self._lock = threading.Lock()
        # The start addresses, and the regions in the same order. Replaced as a whole.
        self._sorted: tuple[list[int], list[Region]] = ([], [])

    def allocate(self, nbytes: int, what: str) -> Bytes:
        """Return new zeroed memory. Raises RunError if the system has too little."""
        if nbytes == 0:
            return np.zeros(0, np.uint8)
        with self._lock:
            number = len(self.by_number) + 1
            region = self.by_number[number] = Region(number, nbytes, what)
            regions = sorted(self.by_number.values(), key=lambda r: r.start)
            self._sorted = [r.start for r in regions], regions
        return region.array

    def find(self, arrays: Sequence[Array]) -> tuple[Reference, ...]:
        references: list[Reference] = []
        starts, regions = self._sorted
        if not starts:
            return ()
        for i, array in enumerate(arrays):
            start = address_of(array)
            at = bisect_right(starts, start) - 1
            if at < 0 or not array.nbytes:
                continue
            offset = start - starts[at]
            if offset + array.nbytes <= regions[at].nbytes:
                references.append(Reference(i, regions[at].number, offset))
        return tuple(references)

    def close(self) -> None:
        """Close all regions; remaining views keep their memory."""
        self._sorted = ([], [])
        for region in self.by_number.values():
            region.close()
        self.by_number.clear()
