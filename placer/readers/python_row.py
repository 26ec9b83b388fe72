"""One row of a `python:` source: what must hold of it, and errors that name it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any, Never

import numpy as np

from placer.config.sources import Source, no_column
from placer.errors import DataError, RunError, missing_package
from placer.readers.column import Column, check_limits, check_shape, convert


def row_of(source: Source, row: object, number: int) -> Mapping[str, Any]:
    """The row, which must be a mapping; DataError."""
    if not isinstance(row, Mapping):
        raise DataError(
            f"{source.text}: row {number} is a {type(row).__name__}, not a dict",
            hint="yield one dict per row, column name to value",
        )
    return row


def values_of(
    source: Source,
    row: Mapping[str, Any],
    columns: Sequence[Column],
    feeds: Mapping[str, str],
    number: int,
) -> list[np.ndarray]:
    """The value of each input in this row, of its dtype: [1, *shape]. They may be views
    of what the row holds. DataError names the column."""
    found = [_array(source, row, c, feeds[c.name], number) for c in columns]
    for column, value in zip(columns, found, strict=True):
        if value.shape != column.shape:
            _check_no_batch(source, columns, found, number)
            named = feeds[column.name]
            check_shape(value.shape, column, source.text, named, number)
    return [
        convert(value[np.newaxis], c, source.text, feeds[c.name], number)
        for c, value in zip(columns, found, strict=True)
    ]


def check_ranges(
    source: Source,
    columns: Sequence[Column],
    feeds: Mapping[str, str],
    taken: Mapping[str, np.ndarray],
    numbers: Sequence[int],
) -> None:
    """DataError for a value outside the range of its input; `numbers` are those of the
    rows in `taken`."""
    for column in columns:
        named = f"{source.text}: column '{feeds[column.name]}'"

        def where(i: int, named: str = named) -> str:
            return f"{named}, row {numbers[i]}"

        check_limits(taken[column.name], column, where)


def _array(
    source: Source, row: Mapping[str, Any], column: Column, named: str, number: int
) -> np.ndarray:
    if named not in row:
        raise no_column(source.text, named, column.name, tuple(sorted(map(str, row))))
    try:
        return np.asarray(row[named])
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{source.text}: column '{named}', row {number}: {error}",
            hint=f"input '{column.name}' is {column}",
        ) from error


def _check_no_batch(
    source: Source,
    columns: Sequence[Column],
    values: Sequence[np.ndarray],
    number: int,
) -> None:
    """DataError for a row in which every value has one more dimension in front, of the
    same size. One number per row may as well be declared with the wrong shape."""
    sizes = {value.shape[:1] for value in values}
    behind = all(
        value.ndim > 0 and value.shape[1:] == column.shape
        for column, value in zip(columns, values, strict=True)
    )
    if len(sizes) == 1 and behind and (len(columns) > 1 or columns[0].shape):
        (size,) = sizes.pop()
        raise DataError(
            f"{source.text}: row {number} is a batch of {size} rows",
            hint="yield one row at a time; 'batch' in the spec says how many make a"
            " batch",
        )


def fail(source: Source, path: Path, when: str, error: BaseException) -> Never:
    """RunError for what the code of a source raised; it names the line of the module."""
    frames = [f for f in extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f", line {frames[-1].lineno}" if frames else ""
    hint = f"see {path.name}{where}"
    if isinstance(error, FileNotFoundError):
        hint += "; placer.data_folder() is the folder of the spec"
    if install := missing_package(error):
        hint += f"; {install}"
    kind = type(error).__name__
    message = f"reader {source.text} failed {when}: {kind}: {error}"
    raise RunError(message, hint=hint) from error
