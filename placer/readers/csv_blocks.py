"""The text of a `csv:` file in blocks of whole rows, as pyarrow reads them.

pyarrow knows no comments, finds quotes only at the first character of a cell, and goes on
after a quote that ends one. `plain_rows` removes comments and the spaces before a quote, and
refuses text after a quoted cell.
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

from placer.plan.settings.data.cell_options import Csv
from placer.readers.file_errors import file_errors
from placer.system.files.regular import check_regular, open_regular

BLOCK_NBYTES = 1 << 20
"""The bytes that are read at a time."""
MAX_CHARACTERS = 1 << 26
"""The most characters of a cell, and bytes of a row."""
_HINT = "a csv: source is a text file of cells, or such a file in gzip format (.gz)"
_LINE_END = re.compile(rb"\r\n?|\n")


class MalformedError(Exception):
    """A text is not rows of cells. `placer.readers.csv_errors` finds the line."""


@contextmanager
def open_bytes(source: str, path: Path, hint: str = _HINT) -> Iterator[BinaryIO]:
    """Open a file after its byte order mark. Raises DataError, with `hint` if the file is
    damaged, also for what is read inside of the context."""
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

    Attributes:
        form: how the text is read.
        offset: the number of bytes before the next row.
    """

    def __init__(self, file: BinaryIO, form: Csv, nbytes: int) -> None:
        """Read about `nbytes` of a file at a time."""
        self.form, self.offset = form, file.tell()
        self._file, self._nbytes, self._text = file, nbytes, b""

    def take(self) -> bytes:
        """Return the next rows as plain text; b"" at the end of the file.

        Raises:
            MalformedError: a quoted cell has no end or text after it, or a row is too long.
            UnicodeDecodeError: the text is not UTF-8.
        """
        rows, nbytes = self._next_rows()
        self.skip(nbytes)
        return rows

    def peek_line(self) -> tuple[bytes, int]:
        """Return the next row, empty line or comment as plain text, and its bytes in the
        file; raises errors as `take` does."""
        _, nbytes = self._next_rows()
        for line in _LINE_END.finditer(self._text, 0, nbytes):
            row, end = plain_rows(self._text[: line.end()], self.form)
            if end:  # else a quoted cell has several lines
                return row, end
        return plain_rows(self._text[:nbytes], self.form)

    def skip(self, nbytes: int) -> None:
        """Pass bytes that have been read."""
        self._text = self._text[nbytes:]
        self.offset += nbytes

    def _next_rows(self) -> tuple[bytes, int]:
        """Return the next rows as plain text, and their bytes in the file."""
        wanted = self._nbytes
        while True:
            self._text += self._file.read(max(0, wanted - len(self._text)))
            is_end = len(self._text) < wanted
            size = len(self._text)
            end = size if is_end else _line_end(self._text, 0, size)
            rows, nbytes = plain_rows(self._text[:end], self.form)
            if nbytes or not self._text:
                return rows, nbytes
            if is_end:
                raise MalformedError("a quoted cell has no end")
            if wanted >= MAX_CHARACTERS:
                raise MalformedError("a row is too long")
            wanted = min(2 * wanted, MAX_CHARACTERS)


def plain_rows(text: bytes, form: Csv) -> tuple[bytes, int]:
    """Return the whole rows at the start of some lines as plain text, and their bytes in
    `text`, 0 if the first row has more lines. Raises errors as `RowBlocks.take` does."""
    if not text.isascii():
        text.decode()
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
        return plain_rows(text[:end], form) if end > 0 else (b"", 0)
    parts[2::7] = parts[3::7] = [None] * (len(parts) // 7)
    return b"".join(filter(None, parts)), len(text)


def _last_row_end(parts: list[bytes | None]) -> int:
    """Return the end of the last row before a quoted cell at the end of split lines."""
    lengths = [len(part or b"") for part in parts]
    ends = [*accumulate(lengths)]
    for index in reversed(range(len(parts))):
        part = parts[index] or b""
        # Every 7th part is between matches, and the next one is the first character of one.
        if index % 7 < 2 and (end := _line_end(part, 0, len(part))):
            return ends[index] - len(part) + end
    return 0


def _line_end(text: bytes, start: int, stop: int) -> int:
    """Return the end of the last line that ends in a range; 0 if none does."""
    return max(text.rfind(b"\n", start, stop), text.rfind(b"\r", start, stop)) + 1


def _row_end(text: bytes, stop: int) -> int:
    """Return the end of the last row before `stop`, which is not in a quoted cell, of text
    whose quotes are only those of cells; 0 if no row ends there."""
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
    """Return a pattern of text in which quotes are only those of cells."""
    inner = b"[^%b\r\n]" % re.escape(delimiter.encode())
    return re.compile(b'(?:[^"]*+(?<!%b)%b"(?!%b))*+[^"]*+' % (inner, _QUOTED, inner))


@lru_cache(maxsize=8)
def _special(delimiter: str, comment: bytes | None) -> re.Pattern[bytes]:
    """Return a pattern of comments and quoted cells.

    Its groups are the character before, a comment, spaces, the cell, a cell that goes on
    after the text, and a quote of a cell that has text after it.
    """
    end = b"[%b\r\n]" % re.escape(delimiter.encode())
    spaces = b"" if delimiter == " " else b" *"  # a space may be an empty cell
    text = b"(?!)" if comment is None else b"(?<=[\r\n])%b[^\r\n]*" % re.escape(comment)
    cell = b'(%b"(?=%b|\\Z))|(%b\\Z)|(")' % (_QUOTED, end, _QUOTED)
    return re.compile(b"(%b)(?:(%b)|(%b)(?:%b))" % (end, text, spaces, cell))
