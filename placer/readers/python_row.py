"""One row of a `python:` source: checks, conversion, and errors that name the row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb
from typing import Any, Never

import numpy as np

from placer.config.columns import Column
from placer.config.sources import missing_column_error
from placer.errors import DataError, PlacerError, RunError, missing_package_hint
from placer.readers.arguments import ReadRequest
from placer.readers.column import check_limits, check_shape, convert, row_positions


def check_is_mapping(
    request: ReadRequest, row: object, number: int
) -> Mapping[str, Any]:
    """Return the row; DataError unless it is a mapping."""
    if not isinstance(row, Mapping):
        raise DataError(
            f"{request.source.text}: row {number} is a {type(row).__name__}, not a dict",
            hint="yield one dict per row, column name to value",
        )
    return row


def read_values(
    request: ReadRequest, row: Mapping[str, Any], columns: Sequence[Column], number: int
) -> dict[str, np.ndarray]:
    """Return the value of each input in a row: [1, *shape] and of the input's dtype.

    The results may be views of arrays in the row. Raises DataError with the column for
    a value that is missing or does not fit.
    """
    source, names = request.source.text, request.single_feeds
    values = {c.name: _array(source, row, c, names[c.name], number) for c in columns}
    for column in columns:
        value = values[column.name]
        if value.shape != column.shape:
            _check_no_batch(source, columns, values, number)
            check_shape(value.shape, column, source, names[column.name], number)
    return {
        c.name: convert(values[c.name][np.newaxis], c, source, names[c.name], number)
        for c in columns
    }


def check_ranges(
    request: ReadRequest, arrays: Mapping[str, np.ndarray], numbers: Sequence[int]
) -> None:
    """Raise DataError for a value outside the limits of its input.

    `arrays` has the rows of each input, `numbers` are the numbers of these rows.
    """
    for column in request.columns:
        name = request.single_feeds[column.name]
        where = row_positions(request.source.text, name, numbers)
        check_limits(arrays[column.name], column, where)


def _array(
    source: str, row: Mapping[str, Any], column: Column, name: str, number: int
) -> np.ndarray:
    if name not in row:
        raise missing_column_error(
            source, name, column.name, tuple(sorted(map(str, row)))
        )
    try:
        return np.asarray(row[name])
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{source}: column '{name}', row {number}: {error}",
            hint=f"input '{column.name}' is {column}",
        ) from error


def _check_no_batch(
    source: str,
    columns: Sequence[Column],
    values: Mapping[str, np.ndarray],
    number: int,
) -> None:
    """Raise DataError if every value of a row has one more leading dimension, of the
    same size for all. A single scalar input is not checked: it may be declared with the
    wrong shape instead."""
    shapes = [(values[column.name].shape, column.shape) for column in columns]
    sizes = {shape[:1] for shape, _ in shapes}
    are_batches = all(shape and shape[1:] == declared for shape, declared in shapes)
    if len(sizes) == 1 and are_batches and (len(columns) > 1 or columns[0].shape):
        ((size,),) = sizes
        raise DataError(
            f"{source}: row {number} is a batch of {size} rows",
            hint="yield one row at a time; 'batch' in the spec is the number of rows of"
            " a batch",
        )


def module_path(request: ReadRequest) -> Path:
    """Return the file of the source's module."""
    module_name, _ = request.source.path.split(":")
    return (request.folder / f"{module_name}.py").absolute()


@contextmanager
def reader_errors(request: ReadRequest, when: str) -> Iterator[None]:
    """Raise RunError for an exception of a source's code."""
    try:
        yield
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        raise_reader_error(request, when, error)


def raise_reader_error(request: ReadRequest, when: str, error: BaseException) -> Never:
    """Raise RunError for an exception of a source's code, with the line of its
    module."""
    path = module_path(request)
    frames = [f for f in extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f", line {frames[-1].lineno}" if frames else ""
    hint = f"see {path.name}{where}"
    if isinstance(error, FileNotFoundError):
        hint += "; placer.data_folder() is the folder of the spec"
    if install := missing_package_hint(error):
        hint += f"; {install}"
    kind = type(error).__name__
    message = f"reader {request.source.text} failed {when}: {kind}: {error}"
    raise RunError(message, hint=hint) from error
