"""Reads the facts of a file that a pass announces: its size, rows, columns and digest."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from placer.errors import DataError
from placer.plan.settings.data.stream_pass import PassFile
from placer.readers.arguments import ReadRequest
from placer.readers.file_errors import file_errors
from placer.readers.pieces import OpenFile
from placer.readers.streams.contents import COMPLETE, Contents

_TAIL_NBYTES: Final = 1 << 20
"""The bytes at the end of a file that its digest covers, besides drawn blocks."""
_SEED: Final = 0
"""The seed of the drawn blocks, the same in all runs."""


def read_facts(request: ReadRequest) -> PassFile:
    """Return the facts of a file. Only the rows of a `csv:` file need all of its text.

    Args:
        request: the file, and the inputs to read from it.

    Raises:
        DataError: if the file cannot be read, does not fit the inputs, or changes meanwhile.
    """
    source = request.source
    with file_errors(source.text, COMPLETE, OSError):
        file = OpenFile(source.text, request.folder / source.path)
        contents = read_contents(request, file)
        digest = digest_of(file)
        if file.has_changed():
            message = f"{source.text} has changed while it was read"
            raise DataError(message, hint=COMPLETE)
    return PassFile(source.path, file.size, digest, contents.rows, contents.columns)


def digest_of(file: OpenFile) -> int:
    """Return the digest of a file's size, its end and drawn blocks."""
    return file.digest(min(file.size, _TAIL_NBYTES), _SEED)


def read_contents(
    request: ReadRequest, file: OpenFile, *, with_rows: bool = True
) -> Contents:
    """Return the columns of a file that the inputs read, and its number of rows.

    Without rows, the number is 0 for a `csv:` file. Raises DataError if the file cannot be
    read or does not fit the inputs.
    """
    reader = import_module(f"placer.readers.streams.{request.source.kind}_contents")
    contents: Contents = reader.read(request, file, with_rows)
    return contents
