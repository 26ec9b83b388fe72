"""Read a `csv:` file by pieces: ranges of its bytes that end with a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from placer.config.csv import Csv
from placer.config.sources import SourceError
from placer.errors import DataError
from placer.readers.arguments import ReadRequest
from placer.readers.csv_batches import parse_cells, scan_plain
from placer.readers.csv_rows import csv_form, find_columns
from placer.readers.csv_text import open_body, open_table
from placer.readers.pieces import Batch, Columns, OpenFile, PieceRows

_NEWLINE = ord("\n")
_BLANKS = np.frombuffer(b" \t\n\r\f\v", np.uint8)


def open_pieces(request: ReadRequest) -> PieceRows:
    """Open a file, which is scanned for the ends of its rows.

    Raises DataError if the file cannot be read, does not fit the inputs, or is not plain: a
    file in which the end of a row is the end of a line, except in quoted cells.
    """
    source, options, form = request.source.text, request.options, csv_form(request)
    path = request.folder / request.source.path
    if path.suffix == ".gz":
        raise SourceError(
            ("shuffle",),
            f"{source} is compressed, and a window reads parts of a file",
            "unpack the file, or write it as a parquet: file",
        )
    with open_table(source, path, form) as table:
        names, header_lines = table.names, table.header_lines
        file = OpenFile(source, path)
        find_columns(request, names)  # checks the inputs of other processes too
        own = replace(request, options=replace(options, other_columns=()))
        feeds, shape = find_columns(own, names)
        start = _first_byte(path, header_lines)
        delimiter = form.delimiter.encode()
        pieces = _Pieces(len(names), delimiter, start, options.report)
        most = options.first_rows
        is_plain = scan_plain(path, header_lines, form, pieces.add, most)
        if not is_plain or (pieces.is_inside and most is None):
            raise SourceError(
                ("shuffle",),
                f"{source} cannot be read by pieces: it has comments, lines that end with"
                " a carriage return only, very long lines, or quotes within a cell",
                "write it as a parquet: file",
            )
        file.check_unchanged()
        digest = file.digest(0, options.seed) if options.with_digests else None
    reader = _Ranges(
        source,
        file,
        form,
        tuple(names),
        tuple(feeds.read),
        tuple(pieces.ends),
        tuple(accumulate(pieces.counts, initial=0)),
    )
    largest = max((b - a for a, b in pairwise(pieces.ends)), default=0)
    columns = Columns(own, feeds, shape)
    # The text, the copy that pyarrow reads, its cells, and what finds them.
    return PieceRows(tuple(pieces.counts), columns, reader, digest, 4 * largest)


def _first_byte(path: Path, header_lines: int) -> int:
    """Return the offset of the first byte after the header."""
    with open_body(path, header_lines) as file:
        return file.tell()


@dataclass
class _Pieces:
    """The pieces that have been found.

    Attributes:
        width: the number of columns.
        delimiter: what is between cells.
        start: the offset of the first byte of the rows.
        report: called with the number of rows that have been found.
        ends: the offsets of the start, and of the ends of the pieces.
        counts: the number of rows of each piece.
        is_inside: whether the last part ended within a quoted cell.
    """

    width: int
    delimiter: bytes
    start: int
    report: Callable[[int], None]
    ends: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    is_inside: bool = False
    _rows: int = 0
    _scanned: int = 0  # the offset of the end of the last part

    def __post_init__(self) -> None:
        self.ends.append(self.start)
        self._scanned = self.start

    def add(self, text: bytes, inside: bool) -> int:
        """Add a part of the file, which is whole lines: a piece ends with the last row
        that ends in it. Return the number of rows so far."""
        characters = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(characters == _NEWLINE)
        if not text.endswith(b"\n"):
            ends = np.append(ends, len(text))
        quotes = np.flatnonzero(characters == ord('"'))
        is_end = (np.searchsorted(quotes, ends) + inside) % 2 == 0
        self.is_inside = bool((len(quotes) + inside) % 2)
        start, self._scanned = self._scanned, self._scanned + len(text)
        if not is_end.any():
            return self._rows
        last = int(ends[np.flatnonzero(is_end)[-1]])
        starts = np.concatenate([[0], ends[:-1] + 1])
        padded = np.concatenate([characters, [_NEWLINE]])
        for line in np.flatnonzero(is_end & np.isin(padded[starts], _BLANKS)):
            is_end[line] = self._is_row(text[starts[line] : ends[line]])
        end = start + min(last + 1, len(text))
        if rows := int(is_end.sum()):
            self.counts.append(rows)
            self.ends.append(end)
            self._rows += rows
            self.report(self._rows)
        else:
            self.ends[-1] = end
        return self._rows

    def _is_row(self, line: bytes) -> bool:
        """Return whether a line is a row: an empty one is not, and of several columns
        neither is a single cell of blanks."""
        if self.width == 1:
            return line not in (b"", b"\r")
        return bool(line.strip()) or self.delimiter in line


@dataclass(frozen=True)
class _Ranges:
    """Reads ranges of bytes.

    Attributes:
        source: the text of the source, for messages.
        file: the file.
        form: how the text is read.
        names: the columns of the file.
        wanted: the columns that are read.
        ends: the offsets of the first piece, and of the ends of the pieces.
        starts: the number of rows before each piece.
    """

    source: str
    file: OpenFile
    form: Csv
    names: tuple[str, ...]
    wanted: tuple[str, ...]
    ends: tuple[int, ...]
    starts: tuple[int, ...]

    def read(self, piece: int, rows: int) -> Iterator[Batch]:
        """Yield the rows of a piece, whose text is in memory."""
        del rows
        text = self.file.read(self.ends[piece], self.ends[piece + 1])
        indices = [self.names.index(name) for name in self.wanted]
        self.file.check_unchanged()
        width, first = len(self.names), self.starts[piece]
        try:
            batches = parse_cells(text, width, self.form, indices)
        except pa.ArrowInvalid:
            batches = []
        count = sum(batch.num_rows for batch in batches)
        if count != self.starts[piece + 1] - first:
            self._raise_malformed()
        for batch in batches:
            yield Batch(first, dict(zip(self.wanted, batch.columns, strict=True)))
            first += batch.num_rows

    def _raise_malformed(self) -> None:
        """Raise DataError for the first row that is not one cell per column."""
        with open_table(self.source, self.file.path, self.form) as table:
            for _ in table.rows:
                pass
        raise DataError(
            f"{self.source} cannot be read by pieces: it has lines of blanks that are not"
            " ASCII",
            hint="write it as a parquet: file",
        )
