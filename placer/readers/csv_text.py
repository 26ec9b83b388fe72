"""Text files of cells: `.csv` and similar files, plain or compressed by gzip
(`.gz`)."""

from __future__ import annotations

import csv
import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import chain, dropwhile, islice
from pathlib import Path
from threading import Lock
from typing import BinaryIO, TextIO, cast

from placer.config.csv import Csv
from placer.errors import DataError
from placer.files.regular import check_regular, open_regular
from placer.readers.file_errors import file_errors, other_format

MAX_CHARACTERS = 1 << 26
"""The most characters of a cell."""
_LIMIT = Lock()  # held while the limit of the csv module is another one
_ENCODING = "save the file as UTF-8"
_QUOTES = 'a cell that contains a delimiter or a quote is quoted: "a ""b"", c"'

Row = tuple[int, list[str]]
"""The line of the file where a row ends, from 1, and the row's cells."""


@dataclass(frozen=True, slots=True)
class Table:
    """An opened file of cells.

    Attributes:
        names: the names of the columns.
        header_lines: the number of lines up to the row that names the columns; 0 if the
            names are in the spec.
        rows: the rows below, which have one cell per column. Empty lines and comments
            are left out.
    """

    names: list[str]
    header_lines: int
    rows: Iterator[Row]


@contextmanager
def open_table(source: str, path: Path, form: Csv) -> Iterator[Table]:
    """Open a file of cells.

    Args:
        source: the text of the source, for messages.
        path: the file.
        form: how the text is read.

    Raises:
        DataError: with `source` and the line.
    """
    hint = "a csv: source is a text file of cells, or such a file in gzip format (.gz)"
    with file_errors(source, hint, OSError, EOFError, zlib.error):
        try:
            # utf-8-sig drops the byte order mark that some programs write first.
            with TextIOWrapper(
                _open_bytes(path), encoding="utf-8-sig", newline=""
            ) as file:
                rows = _nonempty_rows(source, file, form)
                table = _split_header(source, rows, form)
                if any("\0" in name for name in table.names):
                    raise DataError(
                        f"{source}: line {table.header_lines} has NUL characters",
                        hint=other_format(path) or _ENCODING,
                    )
                yield table
        except UnicodeDecodeError:
            # This reads the file again. A compressed file that is damaged before that
            # line raises an error of `file_errors` instead.
            raise DataError(
                f"{source}: line {_undecodable_line(path)} is not UTF-8",
                hint=other_format(path) or _ENCODING,
            ) from None


def open_body(path: Path, lines: int) -> BinaryIO:
    """Open the bytes of a file without its byte order mark and its first lines."""
    file = _open_bytes(path)
    if file.read(len(BOM_UTF8)) != BOM_UTF8:
        file.seek(0)
    for _ in range(lines):
        file.readline()
    return file


def find_line(source: str, path: Path, form: Csv, row: int) -> int:
    """Return the line of the file where a row ends, which is found by reading the file
    again. Lines count from 1, rows from 0."""
    with open_table(source, path, form) as table:
        line, _ = next(islice(table.rows, row, None))
        return line


def _open_bytes(path: Path) -> BinaryIO:
    if path.suffix != ".gz":
        return open_regular(path)
    check_regular(path)
    return cast(BinaryIO, gzip.open(path))


def _undecodable_line(path: Path) -> int:
    """Return the number of the first line that is not UTF-8. The reader cannot tell: it
    decodes ahead of the line that it returns."""
    with _open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    raise AssertionError(path)


def _nonempty_rows(source: str, file: TextIO, form: Csv) -> Iterator[Row]:
    """Yield the rows of the file, the header too, without empty lines and comments."""
    number, between_rows = 0, True

    def lines() -> Iterator[str]:
        # Only a line at the start of a row can be a comment; inside a cell of several
        # lines it is text.
        nonlocal number, between_rows
        for line in file:
            number += 1
            comment = form.comment if between_rows else None
            if comment is None or not line.startswith(comment):
                between_rows = False
                yield line

    table = csv.reader(
        lines(),
        delimiter=form.delimiter,
        skipinitialspace=form.delimiter != " ",  # Python 3.13 refuses both together
        strict=True,
    )
    try:
        while (row := _next_row(table)) is not None:
            if row:
                yield number, row
            between_rows = True
    except csv.Error as error:
        message, hint = str(error), _QUOTES
        if message.startswith("field larger than field limit"):
            message = f"a cell has more than {MAX_CHARACTERS:,} characters"
            hint = "a quote that is not closed makes one cell of all that follows"
        raise DataError(f"{source}: line {number}: {message}", hint=hint) from error


def _next_row(table: Iterator[list[str]]) -> list[str] | None:
    """Return the next row; None at the end.

    The csv module has one limit of the length of cells for the whole process. It is
    raised for this row only, so that code of the user keeps its own.
    """
    with _LIMIT:
        limit = csv.field_size_limit(MAX_CHARACTERS)
        try:
            return next(table, None)
        finally:
            if csv.field_size_limit() == MAX_CHARACTERS:
                csv.field_size_limit(limit)


def _split_header(source: str, table: Iterator[Row], form: Csv) -> Table:
    """Return the table, with the names in the first row or in the spec."""
    if form.header is None:  # a line of blanks names no column
        table = dropwhile(lambda row: not any(map(str.strip, row[1])), table)
    first = next(table, None)
    names = [] if first is None else [name.strip() for name in first[1]]
    header_lines = 0
    if form.header is not None:
        if first is not None and names == form.header:
            message = f"{source}: line {first[0]} names the columns, as 'header' does"
            raise DataError(message, hint="leave 'header' out of csv")
        names = form.header
        table = chain([] if first is None else [first], table)
    elif first is None:
        raise DataError(f"{source} is empty", hint="its first row names the columns")
    else:
        header_lines = first[0]
    return Table(names, header_lines, _checked_rows(source, table, len(names), form))


def _checked_rows(
    source: str, table: Iterator[Row], width: int, form: Csv
) -> Iterator[Row]:
    """Yield the rows; DataError for a row without exactly one cell per column."""
    for number, row in table:
        if len(row) == width:
            yield number, row
        elif len(row) > 1 or row[0].strip():
            cells = "1 cell" if len(row) == 1 else f"{len(row)} cells"
            columns = "1 column" if width == 1 else f"{width} columns"
            raise DataError(
                f"{source}: line {number} has {cells}, and there are {columns}",
                hint=f"cells are separated by {form.delimiter!r}; a cell that contains"
                " one must be quoted",
            )
