"""The cells of a `csv:` file as text, in batches of rows.

pyarrow reads a file on whose cells it agrees with Python's csv module. The csv module
reads any other file, and reports what is wrong with a file that is not a table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow.csv import (
    ConvertOptions,
    InvalidRow,
    ParseOptions,
    ReadOptions,
    read_csv,
)

from placer.config.csv import Csv
from placer.readers.csv_text import MAX_CHARACTERS, Table, open_body

Batch = Mapping[str, pa.StringArray]
"""The cells of some rows, by the name of their column."""

_ROWS_PER_BATCH = 4096
BLOCK_NBYTES = 1 << 20
SCANNED_NBYTES = 256 << 10
"""The least bytes that are scanned at a time, besides the rest of a line."""
_LONE_RETURN = re.compile(rb"\r[^\n]")
"""A line that ends with a carriage return only."""


def read_batches(
    table: Table,
    path: Path,
    form: Csv,
    wanted: Sequence[str],
    most: int | None = None,
) -> Iterator[Batch]:
    """Yield the cells of all rows, in batches of at least one row.

    Args:
        table: the opened file, from which no row has been read.
        path: the file.
        form: how the text is read.
        wanted: the names of the columns to return.
        most: the number of rows after which reading ends; None for all.

    Raises:
        DataError: for a row that is malformed.
        UnicodeDecodeError, OSError, EOFError, zlib.error: for a damaged file.
    """
    rows, indices = table.rows, [table.names.index(name) for name in wanted]
    if most is not None:
        rows = islice(rows, most)
    elif scan_plain(path, table.header_lines, form):
        count = 0
        try:
            with open_body(path, table.header_lines) as file:
                for text in _read_blocks(file):
                    for rows_ in parse_cells(text, len(table.names), form, indices):
                        yield dict(zip(wanted, rows_.columns, strict=True))
                        count += rows_.num_rows
            return
        except pa.ArrowInvalid:
            # A row without one cell per column, or a cell that is too long: the csv
            # module continues with the rows that follow the batches so far.
            rows = islice(rows, count, None)
    while pending := [row for _, row in islice(rows, _ROWS_PER_BATCH)]:
        columns = list(zip(*pending, strict=True))
        yield {
            name: pa.array(columns[index], pa.string())
            for name, index in zip(wanted, indices, strict=True)
        }


def _read_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield plain text in parts that are whole rows.

    Raises pa.ArrowInvalid for a quoted cell that is too long.
    """
    while text := file.read(BLOCK_NBYTES) + file.readline():
        while text.count(b'"') % 2 and (line := file.readlines(BLOCK_NBYTES)):
            if len(text) > MAX_CHARACTERS:
                raise pa.ArrowInvalid("a quoted cell is too long")
            text = b"".join([text, *line])
        yield text


def parse_cells(
    text: bytes, width: int, form: Csv, indices: Sequence[int]
) -> list[pa.RecordBatch]:
    """Return the cells of some of the `width` columns of plain text, which is whole rows.

    The threads of pyarrow read a copy of the text, and call nothing of Python: one that
    does so, or that still has a reference to a file, when the interpreter ends aborts the
    process.

    Raises pa.ArrowInvalid for a row without one cell per column.
    """

    def skip_blank(row: InvalidRow) -> str:
        is_blank = row.actual_columns == 1 and not row.text.strip()
        return "skip" if is_blank else "error"

    # Names of columns may be repeated, so they are numbered instead.
    names = [str(index) for index in range(width)]
    reading = ReadOptions(
        column_names=names, use_threads=False, block_size=len(text) + 1
    )
    parsing = ParseOptions(
        delimiter=form.delimiter,
        newlines_in_values=True,
        invalid_row_handler=skip_blank,
    )
    included = [names[index] for index in indices]
    converting = ConvertOptions(
        column_types=dict.fromkeys(included, pa.string()),
        include_columns=included,
        check_utf8=False,  # `scan_plain` has decoded the file
    )
    copy = pa.BufferOutputStream()
    copy.write(text)
    table = read_csv(pa.BufferReader(copy.getvalue()), reading, parsing, converting)
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches


def scan_plain(
    path: Path,
    header_lines: int,
    form: Csv,
    visit: Callable[[bytes, bool], int] = lambda text, inside: 0,
    most: int | None = None,
) -> bool:
    """Return whether pyarrow reads the same cells as Python's csv module.

    `visit` is called with the text of each part of the rows, which are whole lines, and
    with whether a quoted cell goes on from the part before. It returns the number of rows
    so far; from `most` on, the rest of the file is not scanned.

    They differ on comments and on quotes that do not enclose a cell, and pyarrow
    accepts a cell of any length. Lines that end with a carriage return only are left to
    the csv module, because `open_body` counts others.
    """
    if not 0 < ord(form.delimiter) < 128:
        return False
    comment = None if form.comment is None else b"\n" + form.comment.encode()
    inside = False
    with open_body(path, 0) as file:
        header = [file.readline() for _ in range(header_lines)]
        if any(map(_LONE_RETURN.search, header)):
            return False
        while lines := file.readlines(SCANNED_NBYTES):
            text = b"".join([b"\n", *lines, b"\n"])
            text.decode()
            quotes = _is_inside_after(text, form.delimiter, inside)
            if (
                quotes is None
                or _LONE_RETURN.search(text)
                or (comment is not None and comment in text)
                or max(map(len, lines)) > MAX_CHARACTERS
            ):
                return False
            if visit(text[1:-1], inside) >= (most or math.inf):
                return True
            inside = quotes
    return not inside


def _is_inside_after(text: bytes, delimiter: str, inside: bool) -> bool | None:
    """Return whether the end of a text is inside a quoted cell, as its start is if
    `inside`; None if a quote neither encloses a cell nor is doubled within one.

    The text starts and ends with the end of a line.
    """
    if b'"' not in text:
        return inside
    characters = np.frombuffer(text, np.uint8)
    quotes = np.flatnonzero(characters == ord('"'))
    opening, closing = (
        (quotes[1::2], quotes[::2]) if inside else (quotes[::2], quotes[1::2])
    )
    # The second of two quotes within a cell opens it again.
    beside = np.frombuffer(b'"\r\n' + delimiter.encode(), np.uint8)
    neighbors = np.concatenate([characters[opening - 1], characters[closing + 1]])
    if not np.isin(neighbors, beside).all():
        return None
    return inside ^ bool(len(quotes) % 2)
