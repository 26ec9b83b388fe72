"""A source that is read in pieces, such as the row groups of a Parquet file."""

from __future__ import annotations

import os
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import RawIOBase
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from weakref import finalize

import numpy as np

from placer.errors import DataError
from placer.plan.settings.data.digests import Digests
from placer.readers.arguments import ReadRequest
from placer.readers.chunks import FileFormat, convert_batch
from placer.readers.column import dtype_of
from placer.readers.digests import join_digests
from placer.readers.feeds import Feeds
from placer.system.files.regular import open_regular

if TYPE_CHECKING:  # every run imports this module, and pyarrow starts threads
    import pyarrow as pa

DRAWN_BLOCKS = 64
"""The number of blocks of a file that processes compare besides its ends."""
BLOCK_NBYTES = 4096


@dataclass(frozen=True)
class Batch:
    """Some consecutive rows of a piece, as stored in the file.

    Attributes:
        first: the number of the first row in the file.
        columns: the columns by name, of equal lengths.
        form: how the columns become values.
    """

    first: int
    columns: Mapping[str, pa.Array]
    form: Columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def slice(self, start: int, stop: int) -> Batch:
        """Return the rows [start, stop) of the batch."""
        if (start, stop) == (0, len(self)):
            return self
        parts = {n: a.slice(start, stop - start) for n, a in self.columns.items()}
        return Batch(self.first + start, parts, self.form)

    def convert(self, out: Mapping[str, np.ndarray]) -> None:
        """Write the values of the inputs in the rows to arrays, [rows, *shape].

        Raises DataError if a value does not fit.
        """
        form = self.form
        convert_batch(
            form.request, form.feeds, self.columns, form.form, self.first, out
        )


class Reader(Protocol):
    """Reads the pieces of a file. Several threads may use it at once."""

    def read(self, piece: int, rows: int) -> Iterator[Batch]:
        """Yield all rows of a piece, `rows` at a time or in the format's own batches.

        Raises DataError if the piece cannot be read.
        """
        ...


@dataclass(frozen=True)
class Columns:
    """The columns of a file that feed the inputs of a process.

    Attributes:
        request: the inputs.
        feeds: the columns that feed them.
        form: how the columns become values.
    """

    request: ReadRequest
    feeds: Feeds
    form: FileFormat

    def empty(self, rows: int) -> dict[str, np.ndarray]:
        """Return an array for each input, [rows, *shape], of its dtype."""
        source = self.request.source.text
        return {
            c.name: np.empty((rows, *c.shape), dtype_of(c, source))
            for c in self.request.columns
        }


@dataclass(frozen=True)
class PieceRows:
    """The rows of an opened source that is read in pieces.

    Attributes:
        counts: the number of rows of each piece.
        columns: the columns that feed the inputs, in the first file.
        reader: reads a piece.
        file_digest: the digest of the files to compare with other processes, if any.
        open_nbytes: the maximum memory for reading a piece besides the rows, in bytes.
    """

    counts: tuple[int, ...]
    columns: Columns
    reader: Reader
    file_digest: int | None
    open_nbytes: int

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(self.counts)

    def digests(self) -> Digests:
        """Return the digest of the file."""
        return Digests((), {}, file=self.file_digest)


def joined_pieces(files: Sequence[PieceRows]) -> PieceRows:
    """Return the pieces of several files as those of one source."""
    if len(files) == 1:
        return files[0]
    digests = [each.file_digest for each in files if each.file_digest is not None]
    return PieceRows(
        tuple(count for each in files for count in each.counts),
        files[0].columns,
        _Readers(
            tuple(accumulate((len(each.counts) for each in files), initial=0)),
            tuple(each.reader for each in files),
        ),
        join_digests(digests) if digests else None,
        max(each.open_nbytes for each in files),
    )


@dataclass(frozen=True)
class _Readers:
    """Reads the pieces of several files; `starts` are the first piece of each file."""

    starts: tuple[int, ...]
    readers: tuple[Reader, ...]

    def read(self, piece: int, rows: int) -> Iterator[Batch]:
        file = bisect_right(self.starts, piece) - 1
        return self.readers[file].read(piece - self.starts[file], rows)


class OpenFile:
    """A file that stays open while threads read its pieces.

    If another file replaces it, the old one is still read.

    Attributes:
        path: the file.
        size: its size in bytes.
    """

    def __init__(self, source: str, path: Path) -> None:
        """Open a file; `source` is the text of the source, for messages."""
        self.path, self._source = path, source
        file = open_regular(path)
        finalize(self, file.close)
        self._descriptor = file.fileno()
        self.size, self._modified = self._facts()

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes [start, stop), or fewer at the end of the file."""
        parts = []
        while start < stop and (part := self._read(start, stop)):
            parts.append(part)
            start += len(part)
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def _read(self, start: int, stop: int) -> bytes:
        return os.pread(self._descriptor, stop - start, start)

    def stream(self) -> RawIOBase:
        """Return the file as a stream with a separate position."""
        return _Stream(self)

    def check_unchanged(self) -> None:
        """Raise DataError if the file was modified since it was opened."""
        if self.has_changed():
            raise self.changed()

    def has_changed(self) -> bool:
        """Return whether the file was modified since it was opened."""
        return self._facts() != (self.size, self._modified)

    def changed(self) -> DataError:
        """Return the error for a file that was modified since it was opened."""
        return DataError(
            f"{self._source} has changed while it was read",
            hint="write new rows to a new file; a window reads the file during the run",
        )

    def digest(self, tail: int, seed: int) -> int:
        """Return a digest of the file's size, its last `tail` bytes, and random blocks.

        `seed` draws the blocks.
        """
        digest = zlib.crc32(self.read(self.size - tail, self.size))
        digest = zlib.crc32(self.size.to_bytes(8, "little"), digest)
        key = np.array([seed % 2**64, 0], np.uint64)
        blocks = -(-self.size // BLOCK_NBYTES)
        generator = np.random.Generator(np.random.Philox(key=key))
        for block in np.sort(generator.integers(0, max(1, blocks), DRAWN_BLOCKS)):
            start = int(block) * BLOCK_NBYTES
            digest = zlib.crc32(self.read(start, start + BLOCK_NBYTES), digest)
        return digest

    def _facts(self) -> tuple[int, int]:
        facts = os.fstat(self._descriptor)
        return facts.st_size, facts.st_mtime_ns


class _Stream(RawIOBase):
    """A stream with its own position on a file that several threads read."""

    def __init__(self, file: OpenFile) -> None:
        self._file, self._position = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        before = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}
        self._position = before.get(whence, self._file.size) + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        stop = self._file.size if size is None or size < 0 else self._position + size
        content = self._file.read(self._position, stop)
        self._position += len(content)
        return content
