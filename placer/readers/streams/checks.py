"""Compares the files of a pass with its announcement, and with those of earlier passes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from placer.errors import DataError
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.source import Data
from placer.plan.settings.data.stream_pass import PassFile, StreamPass
from placer.readers.arguments import ReadRequest
from placer.readers.file_errors import file_errors
from placer.readers.file_sets import check_same_types, request_file
from placer.readers.pieces import OpenFile
from placer.readers.source import make_request
from placer.readers.streams.contents import COMPLETE
from placer.readers.streams.facts import digest_of, read_contents

_UNCHANGED: Final = (
    "give the same command again to train the file as it is now; rename a file only when it is"
    " complete"
)


def check_files(
    data: Data, columns: Sequence[Column], folder: Path, stream_pass: StreamPass
) -> None:
    """Check that the files of a pass are those that the control node has announced.

    Args:
        data: the settings of the stream; `data.columns` names only inputs of `columns`.
        columns: the inputs that this process reads.
        folder: the folder that paths are relative to.
        stream_pass: the announcement.

    Raises:
        DataError: for the first file that cannot be read or differs, with the difference.
    """
    request = make_request(data, columns, folder)
    for file in stream_pass.files:
        one = request_file(request, file.path, is_first=False)
        if why := _find_difference(one, file):
            raise DataError(
                f"{one.source.text} has changed since it was announced for pass"
                f" {stream_pass.number}: {why}",
                hint=_UNCHANGED,
            )


def _find_difference(request: ReadRequest, announced: PassFile) -> str | None:
    source = request.source
    with file_errors(source.text, COMPLETE, OSError):
        file = OpenFile(source.text, request.folder / source.path)
        if file.size != announced.size:
            return f"it has {file.size:,} bytes, not {announced.size:,}"
        if digest_of(file) != announced.digest:
            return "it has the same size, but other bytes"
        contents = read_contents(request, file, with_rows=False)
    for name, type_ in contents.columns.items():
        if type_ != announced.columns.get(name):
            return f"the inputs read other columns, such as '{name}'"
    return None


def check_same_columns(kind: str, file: PassFile, other: PassFile) -> None:
    """Raise DataError unless inputs read the same columns, of the same types, of two files."""
    source, first = f"{kind}:{file.path}", f"{kind}:{other.path}"
    if [*file.columns] != [*other.columns]:
        raise DataError(
            f"{source}: the inputs read the columns {_listed(file)}, but"
            f" {_listed(other)} of {first}",
            hint="each input must read the same columns of all files",
        )
    check_same_types(source, file.columns, first, other.columns)


def _listed(file: PassFile) -> str:
    return ", ".join(f"'{name}'" for name in file.columns)
