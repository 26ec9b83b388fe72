"""Reads the columns and the number of rows of a `parquet:` file from its footer."""

from __future__ import annotations

from typing import Final

from pyarrow.parquet import ParquetFile

from placer.errors import DataError
from placer.readers.arguments import ReadRequest
from placer.readers.parquet import find_columns, parquet_errors, types_of
from placer.readers.pieces import OpenFile
from placer.readers.streams.contents import COMPLETE, Contents

_MARK: Final = b"PAR1"
"""The end of a complete file."""


def read(request: ReadRequest, file: OpenFile, with_rows: bool) -> Contents:
    """Return the contents."""
    del with_rows
    source = request.source.text
    if file.read(max(0, file.size - len(_MARK)), file.size) != _MARK:
        raise DataError(f"{source} has no footer: it is not complete", hint=COMPLETE)
    with (
        parquet_errors(source),
        ParquetFile(file.stream(), pre_buffer=False) as table,
    ):
        feeds, _ = find_columns(request, table.schema_arrow)
        types, rows = types_of(table.schema_arrow), table.metadata.num_rows
    return Contents({name: types[name] for name in feeds.read}, rows)
