"""Shared memory without a name: mapped `memfd` files, passed over a unix socket.

The size of a file is sealed before another process gets it: if a process could truncate
the file, every process that reads the mapping would be killed by SIGBUS. The mapping of
the process that created it is the only writable one.
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

_FUTURE_WRITE: Final = 0x10  # F_SEAL_FUTURE_WRITE of Linux 5.1, which Python lacks


@lru_cache
def is_supported() -> bool:
    """Whether this system lets a process make shared memory: tried once, because a
    sandbox may refuse the calls."""
    needed = ((os, "memfd_create"), (fcntl, "F_ADD_SEALS"))
    if not all(hasattr(module, name) for module, name in needed):
        return False
    try:
        Region(0, 1, "a test of shared memory").close()
    except RunError:
        return False
    return True


class Region:
    """Shared memory of this process: `array` is all of it, `fd` its file descriptor.

    `number` identifies it for the peers. Raises RunError, in which `what` names the
    node, when the system cannot provide `nbytes` bytes.
    """

    def __init__(self, number: int, nbytes: int, what: str) -> None:
        self.number = number
        self.nbytes = nbytes
        # The system overcommits: it would grant more than it has, and kill a process
        # when the memory is written to.
        available = available_nbytes()
        if nbytes > available:
            raise RunError(
                f"{what}: {nbytes} bytes of shared memory are more than the {available} "
                "that are available"
            )
        self.fd = -1
        try:
            self.fd = os.memfd_create("placer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.truncate(self.fd, nbytes)
            mapping = mmap.mmap(self.fd, nbytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
            with suppress(OSError):  # an older kernel; `attach` maps read-only anyway
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _FUTURE_WRITE)
        except (OSError, OverflowError, ValueError) as error:
            if self.fd >= 0:
                os.close(self.fd)
            raise RunError(
                f"{what}: no {nbytes} bytes of shared memory: {error}"
            ) from None
        self.array: Bytes = np.frombuffer(mapping, np.uint8)
        self.start = address_of(self.array)

    def close(self) -> None:
        """Close the file descriptor; the memory is freed with its last view."""
        os.close(self.fd)


def attach(fd: int, nbytes: int) -> Bytes:
    """Map memory of a peer read-only; takes ownership of the file descriptor.

    Raises InvalidFrame for a file that is not sealed memory of at least `nbytes` bytes.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK:
            raise InvalidFrame("shared memory: its size is not sealed")
        if not 0 < nbytes <= os.fstat(fd).st_size:
            raise InvalidFrame(f"shared memory: it does not have {nbytes} bytes")
        mapping = mmap.mmap(fd, nbytes, prot=mmap.PROT_READ)
    except (OSError, OverflowError) as error:
        raise InvalidFrame(f"shared memory: it cannot be mapped: {error}") from None
    finally:
        os.close(fd)
    return np.frombuffer(mapping, np.uint8)


class Regions:
    """The shared memory of a node, searchable by address; safe to use from threads.

    `by_number` maps the numbers of the regions, from 1, to them.
    """

    def __init__(self) -> None:
        self.by_number: dict[int, Region] = {}
        self._lock = threading.Lock()
        # The addresses of the regions, and the regions; replaced whole.
        self._sorted: tuple[list[int], list[Region]] = ([], [])

    def allocate(self, nbytes: int, what: str) -> Bytes:
        """Return new zeroed memory; raises RunError when the system has too little."""
        if nbytes == 0:
            return np.zeros(0, np.uint8)
        with self._lock:
            number = len(self.by_number) + 1
            region = self.by_number[number] = Region(number, nbytes, what)
            regions = sorted(self.by_number.values(), key=lambda r: r.start)
            self._sorted = [r.start for r in regions], regions
        return region.array

    def find(self, arrays: Sequence[Array]) -> tuple[Reference, ...]:
        """Return the place of each array that is inside a region."""
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
        """Close all regions; views that are left keep their memory."""
        self._sorted = ([], [])
        for region in self.by_number.values():
            region.close()
        self.by_number.clear()
