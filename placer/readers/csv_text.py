"""A text file of cells: a `.csv` and its like, or one that gzip has packed as `.gz`."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from placer.config.csv import Csv
from placer.errors import DataError
from placer.files.regular import check_regular, open_regular

Row = tuple[int, list[str]]
"""The line of the file on which a row ends, from 1, and its cells."""


@contextmanager
def opened(
    source: str, path: Path, form: Csv
) -> Iterator[tuple[list[str], Iterator[Row]]]:
    """The names of the columns, and the rows, each of which has a cell for each column.

    Empty lines are no rows. DataError names `source` and the line.
    """
    try:
        try:
            # The byte order mark that some programs write is no part of the first name.
            with TextIOWrapper(_bytes(path), encoding="utf-8-sig", newline="") as file:
                yield _named(source, _table(source, file, form), form)
        except UnicodeDecodeError:
            # Reads the file again, which may turn out to be damaged before that line.
            raise DataError(
                f"{source}: line {_undecodable(path)} is not UTF-8",
                hint="save the file as UTF-8",
            ) from None
    except FileNotFoundError:
        raise DataError(
            f"{source}: there is no such file",
            hint="the path is relative to the spec's folder",
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{source} cannot be read: {error}",
            hint="it is a text file of cells, or one that gzip has packed as .gz",
        ) from error


def _bytes(path: Path) -> BinaryIO:
    if path.suffix != ".gz":
        return open_regular(path)
    check_regular(path)
    return cast(BinaryIO, gzip.open(path))


def _undecodable(path: Path) -> int:
    """The first line that is not UTF-8: a file reads ahead of the lines it gives."""
    with _bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    raise AssertionError(path)


class _Lines(Iterator[str]):
    """The lines of a file but for comments; `number` is that of the last, from 1.

    A line is a comment where a row might begin, as `between` says until one has: in a
    cell of several lines it is text.
    """

    def __init__(self, file: TextIO, comment: str | None) -> None:
        self._file = file
        self._comment = comment
        self.between = True
        self.number = 0

    def __next__(self) -> str:
        for line in self._file:
            self.number += 1
            comment = self._comment if self.between else None
            if comment is None or not line.startswith(comment):
                self.between = False
                return line
        raise StopIteration


def _table(source: str, file: TextIO, form: Csv) -> Iterator[Row]:
    """The rows as they stand, empty lines left out."""
    lines = _Lines(file, form.comment)
    table = csv.reader(
        lines,
        delimiter=form.delimiter,
        skipinitialspace=form.delimiter != " ",  # Python 3.13 refuses both
        strict=True,
    )
    try:
        for row in table:
            if row:
                yield lines.number, row
            lines.between = True
    except csv.Error as error:
        raise DataError(
            f"{source}: line {lines.number}: {error}",
            hint='a cell that holds a delimiter or a quote is quoted: "a ""b"", c"',
        ) from error


def _named(
    source: str, table: Iterator[Row], form: Csv
) -> tuple[list[str], Iterator[Row]]:
    """The columns' names, from the first row or from the spec, and the rows."""
    first = next(table, None)
    head = [] if first is None else [name.strip() for name in first[1]]
    if form.header is None:
        if not head:
            hint = "its first row names the columns"
            raise DataError(f"{source} is empty", hint=hint)
        return head, _whole(source, table, len(head), form)
    if first is not None:
        if head == form.header:
            message = f"{source}: line {first[0]} names the columns, as 'header' does"
            raise DataError(message, hint="leave 'header' out of csv")
        table = chain([first], table)
    return form.header, _whole(source, table, len(form.header), form)


def _whole(source: str, table: Iterator[Row], width: int, form: Csv) -> Iterator[Row]:
    """The rows that have a cell for each column; DataError for any other."""
    for number, row in table:
        if len(row) == width:
            yield number, row
        elif len(row) > 1 or row[0].strip():
            cells = "1 cell" if len(row) == 1 else f"{len(row)} cells"
            columns = "1 column" if width == 1 else f"{width} columns"
            raise DataError(
                f"{source}: line {number} has {cells}, and there are {columns}",
                hint=f"cells are divided by {form.delimiter!r}; a cell that holds one is"
                " quoted",
            )
