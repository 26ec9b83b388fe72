"""Shared memory without a name: `memfd` files, mapped, passed over a unix socket.

Their size is sealed before anybody else has them, so that nobody can cut a file short
under a mapping, which would kill the process that reads it. The maker's mapping is the
only writable one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from placer.channel.protocol import Array
from placer.errors import RunError

_FUTURE_WRITE: Final = 0x10  # F_SEAL_FUTURE_WRITE of Linux 5.1, which Python lacks

Bytes = npt.NDArray[np.uint8]


def supported() -> bool:
    """Whether this system has what shared memory channels need."""
    needed = ((os, "memfd_create"), (os, "eventfd"), (fcntl, "F_ADD_SEALS"))
    return all(hasattr(module, name) for module, name in needed)


class Region:
    """Memory that this process has made: `array` is all of it, `fd` opens it."""

    def __init__(self, number: int, nbytes: int, what: str) -> None:
        self.number = number
        self.nbytes = nbytes
        # The system would promise it, and kill somebody once it is written to.
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if nbytes > there:
            raise RunError(
                f"{what}: {nbytes} bytes of shared memory are more than the {there} "
                "that this machine has"
            )
        self.fd = os.memfd_create("placer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(self.fd, nbytes)
            mapping = mmap.mmap(self.fd, nbytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
            _seal_writing(self.fd)
        except (OSError, OverflowError, ValueError) as error:
            os.close(self.fd)
            raise RunError(
                f"{what}: no {nbytes} bytes of shared memory: {error}"
            ) from None
        self.array: Bytes = np.frombuffer(mapping, np.uint8)

    @property
    def start(self) -> int:
        """The address of its first byte."""
        return address(self.array)

    def close(self) -> None:
        """Let the file go; the memory itself goes with its last view."""
        os.close(self.fd)


def attach(fd: int, nbytes: int) -> Bytes:
    """A read-only view of memory that a peer has made; takes the descriptor over.

    ValueError for a file that is not sealed memory of at least `nbytes` bytes.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK:
            raise ValueError("its size is not sealed")
        if not 0 < nbytes <= os.fstat(fd).st_size:
            raise ValueError(f"it does not have {nbytes} bytes")
        mapping = mmap.mmap(fd, nbytes, prot=mmap.PROT_READ)
    except (OSError, OverflowError) as error:
        raise ValueError(f"it cannot be mapped: {error}") from None
    finally:
        os.close(fd)
    return np.frombuffer(mapping, np.uint8)


class Regions:
    """The memory that a node shares, found by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made = 0
        self._sorted: tuple[list[int], list[Region]] = (
            [],
            [],
        )  # starts; replaced whole

    def make(self, nbytes: int, what: str) -> Bytes:
        """New zeroed memory; RunError when there is not enough of it."""
        if nbytes == 0:
            return np.zeros(0, np.uint8)
        with self._lock:
            self._made += 1
            region = Region(self._made, nbytes, what)
            regions = sorted([*self._sorted[1], region], key=lambda r: r.start)
            self._sorted = [r.start for r in regions], regions
        return region.array

    def find(self, arrays: Sequence[Array]) -> dict[int, tuple[Region, int]]:
        """Of the arrays that lie wholly in a region: the region, and where in it."""
        found: dict[int, tuple[Region, int]] = {}
        starts, regions = self._sorted
        if not starts:
            return found
        for i, array in enumerate(arrays):
            start = address(array)
            at = bisect_right(starts, start) - 1
            if at < 0 or not array.nbytes:
                continue
            offset = start - starts[at]
            if offset + array.nbytes <= regions[at].nbytes:
                found[i] = regions[at], offset
        return found

    def close(self) -> None:
        """Let all of it go; views that are left keep their memory."""
        _, regions = self._sorted
        self._sorted = ([], [])
        for region in regions:
            region.close()


def address(array: Array) -> int:
    """Where an array begins."""
    start: int = array.__array_interface__["data"][0]
    return start


def _seal_writing(fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _FUTURE_WRITE)
    except OSError:
        return  # an older kernel: peers are trusted not to write, as they map to read
