"""Reading ranges of a file whose chunks of `CHUNK` bytes have checksums.

A chunk of which a range is read is read whole, and its checksum is checked.
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
"""The most views that one call reads into; Linux allows 1,024."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes to read: those from `start` on, written to `out`, which has their size."""

    start: int
    out: memoryview

    @property
    def stop(self) -> int:
        """The position after the last byte."""
        return self.start + len(self.out)


@dataclass(frozen=True, slots=True)
class ChunkedFile:
    """A file, or the rest of a file after its first `first` bytes, in chunks.

    Attributes:
        path: the file.
        first: where the first chunk begins.
        nbytes: the size of all chunks together.
        checksums: the CRC-32 of each chunk; None if they are not known, which checks
            nothing.
        damaged: returns the error for a file that has changed, from what is wrong.
    """

    path: Path
    first: int
    nbytes: int
    checksums: Sequence[int] | None
    damaged: Callable[[str], PlacerError]

    def read(self, parts: Sequence[Part]) -> None:
        """Read ranges of bytes, by several threads: while one computes the checksum of a
        chunk, another reads the next. Each chunk is read once.

        Raises OSError, and the error of `damaged`.
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
        """Check the checksums of all chunks. Raises OSError, and the error of
        `damaged`."""
        chunk = memoryview(bytearray(min(CHUNK, self.nbytes)))
        with open_regular(self.path) as file:
            file.seek(self.first)
            for index in range(-(-self.nbytes // CHUNK)):
                self.check(index, [chunk[: file.readinto(chunk)]])

    def check(self, index: int, views: Sequence[memoryview]) -> None:
        """Check the checksum of a chunk. Raises the error of `damaged`."""
        if self.checksums is None:
            return
        checksum = 0
        for view in views:
            checksum = zlib.crc32(view, checksum)
        if checksum != self.checksums[index]:
            raise self.damaged(f"chunk {index} does not have its checksum")

    def _read_chunk(
        self, file: BinaryIO, index: int, parts: Sequence[Part], spare: memoryview
    ) -> None:
        """Read the ranges of a chunk, and check its checksum; the rest of the chunk is
        read into `spare`."""
        low = self.first + index * CHUNK
        spare = spare[: self.first + self.nbytes - low]
        views, copies = _scatter(parts, low, spare)
        if _read_into(file, views, low) != len(spare):
            raise self.damaged("it is shorter than when it was written")
        for out, part in copies:
            out[:] = part
        self.check(index, views)

    def _by_chunk(self, parts: Sequence[Part]) -> dict[int, list[Part]]:
        """Return the ranges that each chunk has bytes of, by the number of the chunk."""
        chunks: dict[int, list[Part]] = defaultdict(list)
        for each in parts:
            last = (each.stop - 1 - self.first) // CHUNK
            for index in range((each.start - self.first) // CHUNK, last + 1):
                chunks[index].append(each)
        return dict(sorted(chunks.items()))


def _scatter(
    parts: Sequence[Part], low: int, spare: memoryview
) -> tuple[list[memoryview], list[tuple[memoryview, memoryview]]]:
    """Return the views into which to read the chunk that starts at `low`, and what to
    copy from where afterwards.

    What is wanted is read to where it is wanted, and the rest into `spare`, which has
    the size of the chunk. If bytes are wanted twice, all are read into `spare`.
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
    """Fill views with the bytes from an offset on; return how many bytes there were."""
    count = 0
    for first in range(0, len(views), _MAX_VIEWS):
        some = views[first : first + _MAX_VIEWS]
        read = os.preadv(file.fileno(), some, offset + count)
        count += read
        if read != sum(map(len, some)):
            break
    return count
