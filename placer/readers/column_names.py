"""Reads the names of the columns of a file, without its rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from placer.plan.settings.data.cell_options import Csv
from placer.plan.settings.data.source import Data
from placer.readers.csv_file import open_table
from placer.readers.file_errors import file_errors
from placer.system.files.regular import open_regular


def read_column_names(data: Data, folder: Path) -> tuple[str, ...]:
    """Return the columns of a `csv:` or `parquet:` source in `folder`, in file order."""
    source = data.parsed
    path = folder / source.path
    if data.csv is not None and data.csv.header is not None:
        return tuple(data.csv.header)
    if source.kind == "csv":
        with open_table(source.text, path, data.csv or Csv()) as table:
            return tuple(table.names)
    assert source.kind == "parquet"
    hint = "a parquet: source must be an Apache Parquet file"
    kinds = OSError, ValueError, pa.ArrowException
    with (
        file_errors(source.text, hint, *kinds),
        open_regular(path) as file,
        ParquetFile(file, pre_buffer=False) as parquet,
    ):
        return tuple(parquet.schema_arrow.names)
