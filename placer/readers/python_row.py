"""One row of a `python:` source: checks, conversion, and errors that name the row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any, Never

import numpy as np

from placer.config.columns import Column
from placer.config.sources import Source, missing_column_error
from placer.errors import DataError, RunError, missing_package_hint
from placer.readers.column import check_limits, check_shape, convert


def check_is_mapping(source: Source, row: object, number: int) -> Mapping[str, Any]:
    """Return the row; DataError unless it is a mapping."""
    if not isinstance(row, Mapping):
        raise DataError(
            f"{source.text}: row {number} is a {type(row).__name__}, not a dict",
            hint="yield one dict per row, column name to value",
        )
    return row


def read_values(
    source: Source,
    row: Mapping[str, Any],
    columns: Sequence[Column],
    feeds: Mapping[str, str],
    number: int,
) -> list[np.ndarray]:
    """Return the value of each input in a row: [1, *shape] and of the input's dtype.

    The results may be views of arrays in the row. Raises DataError with the column for
    a value that is missing or does not fit.
    """
    values = [_array(source, row, c, feeds[c.name], number) for c in columns]
    for column, value in zip(columns, values, strict=True):
        if value.shape != column.shape:
            _check_no_batch(source, columns, values, number)
            name = feeds[column.name]
            check_shape(value.shape, column, source.text, name, number)
    return [
        convert(value[np.newaxis], c, source.text, feeds[c.name], number)
        for c, value in zip(columns, values, strict=True)
    ]


def check_ranges(
    source: Source,
    columns: Sequence[Column],
    feeds: Mapping[str, str],
    arrays: Mapping[str, np.ndarray],
    numbers: Sequence[int],
) -> None:
    """Raise DataError for a value outside the limits of its input.

    `arrays` has the rows of each input, `numbers` are the numbers of these rows.
    """
    for column in columns:
        position = f"{source.text}: column '{feeds[column.name]}'"

        def where(i: int, position: str = position) -> str:
            return f"{position}, row {numbers[i]}"

        check_limits(arrays[column.name], column, where)


def _array(
    source: Source, row: Mapping[str, Any], column: Column, name: str, number: int
) -> np.ndarray:
    if name not in row:
        raise missing_column_error(
            source.text, name, column.name, tuple(sorted(map(str, row)))
        )
    try:
        return np.asarray(row[name])
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{source.text}: column '{name}', row {number}: {error}",
            hint=f"input '{column.name}' is {column}",
        ) from error


def _check_no_batch(
    source: Source,
    columns: Sequence[Column],
    values: Sequence[np.ndarray],
    number: int,
) -> None:
    """Raise DataError if every value of a row has one more leading dimension, of the
    same size for all. A single scalar input is not checked: it may be declared with the
    wrong shape instead."""
    sizes = {value.shape[:1] for value in values}
    are_batches = all(
        value.ndim > 0 and value.shape[1:] == column.shape
        for column, value in zip(columns, values, strict=True)
    )
    if len(sizes) == 1 and are_batches and (len(columns) > 1 or columns[0].shape):
        (size,) = sizes.pop()
        raise DataError(
            f"{source.text}: row {number} is a batch of {size} rows",
            hint="yield one row at a time; 'batch' in the spec is the number of rows of"
            " a batch",
        )


def raise_reader_error(
    source: Source, path: Path, when: str, error: BaseException
) -> Never:
    """Raise RunError for an exception of a source's code, with the line of its
    module."""
    frames = [f for f in extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f", line {frames[-1].lineno}" if frames else ""
    hint = f"see {path.name}{where}"
    if isinstance(error, FileNotFoundError):
        hint += "; placer.data_folder() is the folder of the spec"
    if install := missing_package_hint(error):
        hint += f"; {install}"
    kind = type(error).__name__
    message = f"reader {source.text} failed {when}: {kind}: {error}"
    raise RunError(message, hint=hint) from error
