"""Finds the line of an error in a `csv:` file, with Python's csv module."""

from __future__ import annotations

import csv
from collections.abc import Generator, Iterator
from contextlib import closing
from io import TextIOWrapper
from itertools import chain, dropwhile, islice
from pathlib import Path
from threading import Lock
from typing import TextIO

from placer.errors import DataError
from placer.plan.settings.data.cell_options import Csv
from placer.readers.csv_blocks import MAX_CHARACTERS, open_bytes
from placer.readers.file_errors import other_format

_LIMIT = Lock()  # held while the limit of the csv module is changed
_ENCODING = "save the file as UTF-8"
_QUOTES = 'quote a cell that contains a delimiter or a quote: "a ""b"", c"'
_UNCLOSED = "without its closing quote, a cell extends to the end of the file"

Row = tuple[int, list[str]]
"""The line of the file where a row ends, from 1, and the row's cells."""


def find_line(source: str, path: Path, form: Csv, row: int) -> int:
    """Return the line of the file where a row ends. Lines count from 1, rows from 0."""
    with closing(_read_rows(source, path, form)) as rows:
        line, _ = next(islice(rows, row, None))
        return line


def raise_first_mistake(source: str, path: Path, form: Csv) -> None:
    """Raise DataError for the first line of a file that is not a row, if any."""
    for _ in _read_rows(source, path, form):
        pass


def _read_rows(source: str, path: Path, form: Csv) -> Generator[Row]:
    """Yield the rows below the header, one cell per column."""
    with open_bytes(source, path) as file:
        try:
            text = TextIOWrapper(file, encoding="utf-8", newline="")
            yield from _rows_below_names(
                source, path, _nonempty_rows(source, text, form), form
            )
        except UnicodeDecodeError:
            # This reads the file again. If a compressed file is damaged before that
            # line, `open_bytes` raises an error instead.
            raise DataError(
                f"{source}: line {_undecodable_line(source, path)} is not UTF-8",
                hint=other_format(path) or _ENCODING,
            ) from None


def _undecodable_line(source: str, path: Path) -> int:
    """Return the first line that is not UTF-8; the reader decodes ahead of its line."""
    with open_bytes(source, path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    raise AssertionError(path)


def _nonempty_rows(source: str, file: TextIO, form: Csv) -> Iterator[Row]:
    """Yield the rows of the file with the header, without empty lines and comments."""
    number, first, nbytes, between_rows = 0, 0, 0, True

    def lines() -> Iterator[str]:
        # Only a line at the start of a row can be a comment. Inside a cell of several
        # lines it is text.
        nonlocal number, first, nbytes, between_rows
        for line in file:
            number += 1
            comment = form.comment if between_rows else None
            if comment is None or not line.startswith(comment):
                first = number if between_rows else first
                between_rows = False
                nbytes += len(line.encode())
                yield line

    def where() -> str:
        more = f": the row extends to line {number}" if number > first else ""
        return f"{source}: line {first}{more}"

    table = csv.reader(
        lines(),
        delimiter=form.delimiter,
        skipinitialspace=form.delimiter != " ",  # Python 3.13 rejects the two together
        strict=True,
    )
    try:
        while (row := _next_row(table)) is not None:
            if nbytes >= MAX_CHARACTERS:
                message = f"{where()}: the row has {nbytes:,} bytes"
                hint = f"a row must have less than {MAX_CHARACTERS:,} bytes"
                raise DataError(message, hint=hint)
            if row:
                yield number, row
            nbytes, between_rows = 0, True
    except csv.Error as error:
        message, hint = str(error), _QUOTES
        if message.startswith("field larger than field limit"):
            message = f"a cell has more than {MAX_CHARACTERS:,} characters"
            hint = _UNCLOSED
        elif number > first:
            hint = f"{_UNCLOSED}; {_QUOTES}"
        raise DataError(f"{where()}: {message}", hint=hint) from error


def _next_row(table: Iterator[list[str]]) -> list[str] | None:
    """Return the next row; raise csv's process-wide cell limit only meanwhile."""
    with _LIMIT:
        limit = csv.field_size_limit(MAX_CHARACTERS)
        try:
            return next(table, None)
        finally:
            if csv.field_size_limit() == MAX_CHARACTERS:
                csv.field_size_limit(limit)


def _rows_below_names(
    source: str, path: Path, rows: Iterator[Row], form: Csv
) -> Iterator[Row]:
    """Yield the rows below the header, each with one cell per column."""
    if form.header is None:  # a blank line does not name a column
        rows = dropwhile(lambda row: not any(map(str.strip, row[1])), rows)
    first = next(rows, None)
    names = [] if first is None else [name.strip() for name in first[1]]
    if form.header is not None:
        if first is not None and names == form.header:
            message = (
                f"{source}: line {first[0]} names the columns, but the spec has a"
                " 'header' too"
            )
            raise DataError(message, hint="leave 'header' out of csv")
        names = form.header
        rows = chain([] if first is None else [first], rows)
    elif first is None:
        raise DataError(f"{source} is empty", hint="its first row names the columns")
    elif any("\0" in name for name in names):
        raise DataError(
            f"{source}: line {first[0]} has NUL characters",
            hint=other_format(path) or _ENCODING,
        )
    width = len(names)
    for number, row in rows:
        if len(row) == width:
            yield number, row
        elif len(row) > 1 or row[0].strip():
            cells = "1 cell" if len(row) == 1 else f"{len(row)} cells"
            columns = "1 column" if width == 1 else f"{width} columns"
            raise DataError(
                f"{source}: line {number} has {cells}, but the file has {columns}",
                hint=f"cells are separated by {form.delimiter!r}; quote a cell that"
                " contains it",
            )
