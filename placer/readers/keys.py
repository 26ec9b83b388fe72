"""Reads columns of a file unchanged, to identify its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow.parquet import ParquetFile

from placer.errors import DataError, did_you_mean
from placer.plan.settings.data.cell_options import Csv
from placer.plan.settings.data.columns import duplicate_column_error
from placer.plan.settings.data.source import Data
from placer.readers.arrow_text import decode_bytes, is_bytes, is_utf8
from placer.readers.csv_file import open_table
from placer.readers.file_errors import file_errors
from placer.readers.split import split_rows
from placer.system.files.regular import open_regular


def read_keys(data: Data, names: Sequence[str], folder: Path) -> dict[str, np.ndarray]:
    """Return columns of a `csv:`, `parquet:` or `npz:` source, [rows, ...].

    Cells of a `csv:` file are text without surrounding blanks. Other columns keep their
    types, as far as NumPy has them. Texts are in arrays of objects.

    Args:
        data: the source; only rows of its split are returned.
        names: the columns.
        folder: the folder that the path is relative to.

    Raises:
        DataError: if the file cannot be read or lacks a column.
    """
    if not names:
        return {}
    source = data.parsed
    path = folder / source.path
    columns = COLUMNS_OF[source.kind](data, names, path)
    selected = {}
    for name, column in columns.items():
        selected[name] = column[split_rows(len(column), data.split)]
    return selected


def _check_names(data: Data, names: Sequence[str], existing: Sequence[str]) -> None:
    for name in names:
        if name not in existing:
            hint = did_you_mean(name, existing)
            raise DataError(f"{data.source} has no column '{name}' for keys", hint=hint)
        if existing.count(name) > 1:
            raise duplicate_column_error(data.source, name)


def _csv(data: Data, names: Sequence[str], path: Path) -> dict[str, np.ndarray]:
    form = data.csv or Csv()
    cells: dict[str, list[str]] = {name: [] for name in names}
    with open_table(data.source, path, form) as table:
        _check_names(data, names, table.names)
        for batch in table.batches([table.names.index(name) for name in names]):
            for name, texts in zip(names, batch.columns, strict=True):
                cells[name] += (cell.strip() for cell in texts.to_pylist())
    return {name: _texts(column) for name, column in cells.items()}


def _texts(texts: Sequence[str]) -> np.ndarray:
    """Return texts as objects: NumPy's arrays of text pad each one to the longest."""
    array = np.empty(len(texts), object)
    array[:] = texts
    return array


def _parquet(data: Data, names: Sequence[str], path: Path) -> dict[str, np.ndarray]:
    hint = "a parquet: source must be an Apache Parquet file"
    kinds = OSError, ValueError, pa.ArrowException
    with (
        file_errors(data.source, hint, *kinds),
        open_regular(path) as file,
        ParquetFile(file, pre_buffer=False) as table,
    ):
        _check_names(data, names, table.schema_arrow.names)
        columns = table.read(columns=[*names], use_threads=False)
        return {name: _key(data.source, name, columns.column(name)) for name in names}


def _key(source: str, name: str, column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of a file as an array: text, numbers, booleans or times."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_bytes(column.type):
        column = pa.chunked_array(
            [
                decode_bytes(chunk, lambda i: f"{source}: column '{name}', row {i}")
                for chunk in column.chunks
            ],
            pa.large_string(),
        )
    kind = column.type
    if is_utf8(kind):
        return _texts([text or "" for text in column.to_pylist()])
    is_float = pa.types.is_floating(kind)
    if column.null_count and not is_float:
        raise DataError(
            f"{source}: column '{name}' has missing values, which keys of {kind}"
            " cannot have",
            hint="use a column of text or floats as key, or remove the rows without a"
            " value",
        )
    array: np.ndarray = column.to_numpy(zero_copy_only=False)
    if array.dtype.kind not in "biufM":
        raise DataError(f"{source}: column '{name}' is {kind}, which cannot be a key")
    return array


def _npz(data: Data, names: Sequence[str], path: Path) -> dict[str, np.ndarray]:
    hint = "an npz file holds plain arrays, written by numpy.savez"
    with (
        file_errors(data.source, hint, Exception),
        open_regular(path) as stream,
        np.load(stream, allow_pickle=False) as file,
    ):
        _check_names(data, names, [*file])
        return {name: file[name] for name in names}


COLUMNS_OF = {"csv": _csv, "parquet": _parquet, "npz": _npz}
"""The function that reads columns of a file, by kind of source."""
