"""Reads ranges of a file whose chunks of `CHUNK` bytes have checksums.

To read a range, the whole chunk is read and its checksum is verified.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, Final

from placer.checkpoint.manifest import CHUNK
from placer.errors import PlacerError
from placer.system.files.regular import open_regular

_THREADS: Final = 3
_MAX_VIEWS: Final = 512
"""The largest number of buffers in one call of `preadv`; Linux allows 1,024."""


@dataclass(frozen=True, slots=True)
class Part:
    """A range of bytes to read.

    Attributes:
        start: the position of the first byte in the file.
        out: the buffer for the bytes. Its length is the length of the range.
    """

    start: int
    out: memoryview

    @property
    def stop(self) -> int:
        """The position after the last byte of the range."""
        return self.start + len(self.out)


@dataclass(frozen=True, slots=True)
class ChunkedFile:
    """A file that is divided into chunks, possibly after a header.

    Attributes:
        path: the file.
        first: the position of the first chunk in the file.
        nbytes: the total size of all chunks.
        checksums: the CRC-32 of each chunk; None disables the verification.
        damaged: returns the error for a damaged file, given a description of the damage.
    """

    path: Path
    first: int
    nbytes: int
    checksums: Sequence[int] | None
    damaged: Callable[[str], PlacerError]

    def read(self, parts: Sequence[Part]) -> None:
        """Read ranges of bytes and verify the chunks that contain them.

        Each chunk is read once. Several threads read, because one can read a chunk while
        another computes a checksum.

        Raises:
            OSError: if the file cannot be read.
            PlacerError: the error of `damaged`, if a checksum does not match.
        """
        wanted = sorted(
            (each for each in parts if each.out), key=lambda each: each.start
        )
        with (
            open_regular(self.path) as file,
            ThreadPoolExecutor(_THREADS, "placer checkpoint") as pool,
        ):
            spares: SimpleQueue[bytearray] = SimpleQueue()
            for _ in range(_THREADS):
                spares.put(bytearray(min(CHUNK, self.nbytes)))

            def read_chunk(index: int, parts: Sequence[Part]) -> None:
                spare = spares.get()
                try:
                    self._read_chunk(file, index, parts, memoryview(spare))
                finally:
                    spares.put(spare)

            chunks = [
                pool.submit(read_chunk, index, parts)
                for index, parts in self._by_chunk(wanted).items()
            ]
            try:
                for chunk in chunks:
                    chunk.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def verify(self) -> None:
        """Verify the checksums of all chunks.

        Raises:
            OSError: if the file cannot be read.
            PlacerError: the error of `damaged`, if a checksum does not match.
        """
        chunk = memoryview(bytearray(min(CHUNK, self.nbytes)))
        with open_regular(self.path) as file:
            file.seek(self.first)
            for index in range(-(-self.nbytes // CHUNK)):
                self.check(index, [chunk[: file.readinto(chunk)]])

    def check(self, index: int, views: Sequence[memoryview]) -> None:
        """Verify the checksum of chunk `index`, whose bytes are in `views`.

        Raises:
            PlacerError: the error of `damaged`, if the checksum does not match.
        """
        if self.checksums is None:
            return
        checksum = 0
        for view in views:
            checksum = zlib.crc32(view, checksum)
        if checksum != self.checksums[index]:
            raise self.damaged(f"the checksum of chunk {index} does not match")

    def _read_chunk(
        self, file: BinaryIO, index: int, parts: Sequence[Part], spare: memoryview
    ) -> None:
        """Read the ranges of a chunk, and the rest of it into `spare`; verify the checksum."""
        low = self.first + index * CHUNK
        spare = spare[: self.first + self.nbytes - low]
        views, copies = _scatter(parts, low, spare)
        if _read_into(file, views, low) != len(spare):
            raise self.damaged("the file is shorter than when it was written")
        for out, part in copies:
            out[:] = part
        self.check(index, views)

    def _by_chunk(self, parts: Sequence[Part]) -> dict[int, list[Part]]:
        """Group the ranges by chunk. A range may overlap several chunks."""
        chunks: dict[int, list[Part]] = defaultdict(list)
        for each in parts:
            last = (each.stop - 1 - self.first) // CHUNK
            for index in range((each.start - self.first) // CHUNK, last + 1):
                chunks[index].append(each)
        return dict(sorted(chunks.items()))


def _scatter(
    parts: Sequence[Part], low: int, spare: memoryview
) -> tuple[list[memoryview], list[tuple[memoryview, memoryview]]]:
    """Plan how to read the chunk that starts at position `low` of the file.

    Args:
        parts: the ranges to read.
        low: the start of the chunk.
        spare: a buffer of the size of the chunk.

    Returns:
        The buffers to read into, and pairs (target, source) to copy afterwards. Requested
        bytes are read directly to their targets and the rest into `spare`. If ranges
        overlap, the whole chunk is read into `spare` and copied.
    """
    inside = []
    for each in parts:
        first = each.start - low
        start, stop = max(first, 0), min(each.stop - low, len(spare))
        inside.append((start, stop, each.out[start - first : stop - first]))
    if any(last[1] > following[0] for last, following in pairwise(inside)):
        return [spare], [(out, spare[start:stop]) for start, stop, out in inside]
    views, at = [], 0
    for start, stop, out in inside:
        views += [spare[at:start], out]
        at = stop
    return [view for view in (*views, spare[at:]) if view], []


def _read_into(file: BinaryIO, views: Sequence[memoryview], offset: int) -> int:
    """Fill buffers with the bytes from `offset` on; return the number of bytes read."""
    count = 0
    for first in range(0, len(views), _MAX_VIEWS):
        some = views[first : first + _MAX_VIEWS]
        read = os.preadv(file.fileno(), some, offset + count)
        count += read
        if read != sum(map(len, some)):
            break
    return count
