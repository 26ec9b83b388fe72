"""Reads the text of a `csv:` file in blocks of whole rows, for pyarrow.

pyarrow does not support comments. It recognizes a quote only at the start of a cell,
and accepts text after the closing quote. `plain_rows` removes comments and spaces
before a quote, and rejects text after a quoted cell.
"""

from __future__ import annotations

import gzip
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, cast

from msgspec import structs

from placer.plan.settings.data.cell_options import Csv
from placer.readers.file_errors import file_errors
from placer.system.files.regular import check_regular, open_regular

BLOCK_NBYTES = 1 << 20
"""The number of bytes to read at a time."""
LINE_NBYTES = 1 << 23
"""The number of bytes of a line to read at a time; a file may lack line feeds."""
MAX_CHARACTERS = 1 << 26
"""The maximum number of characters of a cell, and of bytes of a row."""
_HINT = (
    "a csv: source must be a text file of cells, or such a file compressed with gzip"
    " (.gz)"
)
_LINE_END = re.compile(rb"\r\n?|\n")


class MalformedError(Exception):
    """The text has no rows of cells. `placer.readers.csv_errors` finds the line."""


@contextmanager
def open_bytes(source: str, path: Path, hint: str = _HINT) -> Iterator[BinaryIO]:
    """Open a file for reading after its byte order mark.

    Raises DataError, also while the file is read. A damaged file has the given `hint`.
    """
    with file_errors(source, hint, OSError, EOFError, zlib.error), _open(path) as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        yield file


def _open(path: Path) -> BinaryIO:
    if path.suffix != ".gz":
        return open_regular(path)
    check_regular(path)
    return cast(BinaryIO, gzip.open(path))


class RowBlocks:
    """Takes the rows of a file from its start.

    The file is read in parts: a number of bytes, and the rest of the current line.

    Attributes:
        form: how the text is read.
        offset: the number of bytes before the next row.
    """

    def __init__(self, file: BinaryIO, form: Csv, nbytes: int) -> None:
        """Read about `nbytes` of a file at a time."""
        self.form, self.offset = form, file.tell()
        self._file, self._nbytes = file, nbytes
        self._text = b""  # text that was read, without the rows that were taken
        self._begun = False
        self._is_inside = False  # whether the text is the start of a quoted cell

    def take(self) -> bytes:
        """Return the rows that end in the next part of the file, as plain text.

        Returns b"" at the end of the file.

        Raises:
            MalformedError: if a quoted cell has no end or has text after it, or a row
                is too long.
            UnicodeDecodeError: if the text is not UTF-8.
        """
        wanted = self._nbytes if self._begun else self._nbytes - len(self._text)
        self._begun = True
        while True:
            part = self._file.read(max(0, wanted))
            rest = self._file.readline(LINE_NBYTES)
            is_end = len(part) < wanted or (
                rest[-1:] != b"\n" and len(rest) < LINE_NBYTES
            )
            part, wanted = part + rest, self._nbytes
            self._text += part
            rows, nbytes = b"", 0
            if is_end or not self._is_inside or b'"' in part:
                size = len(self._text)
                end = size if is_end else _line_end(self._text, 0, size)
                rows, nbytes = plain_rows(self._text[:end], self.form)
                self._is_inside = nbytes < end == size
            if not nbytes or nbytes >= MAX_CHARACTERS:
                self._check_first_row()
            if nbytes or not self._text:
                self.skip(nbytes)
                return rows
            if is_end:
                raise MalformedError("a quoted cell has no end")

    def peek_line(self) -> tuple[bytes, int]:
        """Return the first row, empty line or comment as plain text, and its bytes.

        Call it before the first `take`. It raises the same errors.
        """
        tried = 0
        while True:
            for line in _LINE_END.finditer(self._text, tried):
                # A quoted cell of several lines ends with a quote.
                if not tried or b'"' in self._text[tried : line.end()]:
                    row, nbytes = plain_rows(self._text[: line.end()], self.form)
                    if nbytes:
                        return row, nbytes
                tried = line.end()
            more = self._file.read(len(self._text)) if tried else b""
            more += self._file.readline(LINE_NBYTES)
            if not more:
                row, nbytes = plain_rows(self._text, self.form)
                if self._text and not nbytes:
                    raise MalformedError("a quoted cell has no end")
                return row, nbytes
            self._text += more
            self._check_first_row()

    def skip(self, nbytes: int) -> None:
        """Skip bytes that have been read."""
        self._text = self._text[nbytes:]
        self.offset += nbytes

    def _check_first_row(self) -> None:
        if len(self._text) >= MAX_CHARACTERS:
            end = _line_end(self._text, 0, MAX_CHARACTERS - 1)
            if not plain_rows(self._text[:end], self.form)[1]:
                raise MalformedError("a row is too long")


def plain_rows(text: bytes, form: Csv) -> tuple[bytes, int]:
    """Return the whole rows at the start of some lines as plain text.

    Also returns their bytes in `text`, 0 if the first row has more lines. Plain text
    has the delimiter `plain_delimiter`. Raises the same errors as `RowBlocks.take`.
    """
    if not text.isascii():
        text.decode()
    delimiter, plain = form.delimiter.encode(), plain_delimiter(form).encode()
    if delimiter == plain:
        return _plain_rows(text, form)
    if plain in text:
        raise MalformedError(f"it has {plain!r}, and a delimiter that is not ASCII")
    comment = form.comment and form.comment.replace(form.delimiter, plain.decode())
    text = text.replace(delimiter, plain)
    swapped = structs.replace(form, delimiter=plain.decode(), comment=comment)
    rows, nbytes = _plain_rows(text, swapped)
    return rows, nbytes + text.count(plain, 0, nbytes) * (len(delimiter) - len(plain))


def plain_delimiter(form: Csv) -> str:
    """Return the delimiter of plain text, which must be ASCII for pyarrow."""
    return form.delimiter if form.delimiter.isascii() else "\x1f"


def _plain_rows(text: bytes, form: Csv) -> tuple[bytes, int]:
    comment = None if form.comment is None else form.comment.encode()
    if comment is None or comment not in text:
        if b'"' not in text:
            return text, len(text)
        plain = _plain(form.delimiter).match(text)
        assert plain is not None
        if plain.end() == len(text):
            return text, len(text)
        if end := _row_end(text, plain.end()):
            return text[:end], end
    parts = _special(form.delimiter, comment).split(b"\n" + text)
    if any(parts[6::7]):
        raise MalformedError("a quoted cell has text after it")
    if any(parts[5::7]):
        end = _last_row_end(parts) - 1  # without the line end that was added
        return _plain_rows(text[:end], form) if end > 0 else (b"", 0)
    parts[2::7] = parts[3::7] = [None] * (len(parts) // 7)
    return b"".join(filter(None, parts)), len(text)


def _last_row_end(parts: list[bytes | None]) -> int:
    """Return the end of the last row before an unfinished quoted cell, in split lines."""
    lengths = [len(part or b"") for part in parts]
    ends = [*accumulate(lengths)]
    for index in reversed(range(len(parts))):
        part = parts[index] or b""
        # The split has 7 parts per match: the text before it, then its 6 groups. The
        # first group is one character.
        if index % 7 < 2 and (end := _line_end(part, 0, len(part))):
            return ends[index] - len(part) + end
    return 0


def _line_end(text: bytes, start: int, stop: int) -> int:
    """Return the end of the last line that ends in a range; 0 without such a line."""
    return max(text.rfind(b"\n", start, stop), text.rfind(b"\r", start, stop)) + 1


def _row_end(text: bytes, stop: int) -> int:
    """Return the end of the last row before `stop`, outside of quotes; 0 for no row."""
    while stop > 0:
        quote = text.rfind(b'"', 0, stop)
        if end := _line_end(text, quote + 1, stop):
            return end
        stop = text.rfind(b'"', 0, max(0, quote))  # a cell ends with every second quote
    return 0


_QUOTED = rb'"[^"]*+(?:""[^"]*+)*+'
"""A quoted cell without its last quote."""


@lru_cache(maxsize=8)
def _plain(delimiter: str) -> re.Pattern[bytes]:
    """Return a pattern of text whose quotes all belong to cells."""
    inner = b"[^%b\r\n]" % re.escape(delimiter.encode())
    # Before 3.11.5, Python's `*+` of the outer group would also match half a quoted cell.
    return re.compile(b'(?:[^"]*+(?<!%b)%b"(?!%b))*[^"]*+' % (inner, _QUOTED, inner))


@lru_cache(maxsize=8)
def _special(delimiter: str, comment: bytes | None) -> re.Pattern[bytes]:
    """Return a pattern of comments and quoted cells."""
    end = b"[%b\r\n]" % re.escape(delimiter.encode())
    spaces = b"" if delimiter == " " else b" *"  # a space may be an empty cell
    text = b"(?!)" if comment is None else b"(?<=[\r\n])%b[^\r\n]*" % re.escape(comment)
    cell = b'(%b"(?=%b|\\Z))|(%b\\Z)|(")' % (_QUOTED, end, _QUOTED)
    return re.compile(b"(%b)(?:(%b)|(%b)(?:%b))" % (end, text, spaces, cell))
