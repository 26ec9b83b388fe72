"""Rows of sources whose columns are arrays, with one entry per row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placer.errors import DataError
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.sources import errors_of_input, missing_column_error
from placer.readers.arguments import ReadRequest
from placer.readers.column import check_limits, check_shape, convert, row_positions
from placer.readers.rows import LoadedRows, make_loaded_rows


def make_rows(
    request: ReadRequest, arrays: Mapping[str, np.ndarray], digests: Mapping[str, int]
) -> LoadedRows:
    """Return the rows of the inputs.

    Args:
        request: the inputs, and the columns that feed them.
        arrays: the columns of the source by name, of shape [rows, ...].
        digests: the digest of each column.

    Raises:
        DataError: if a column is missing or does not fit its input.
    """
    source, names = request.source.text, request.single_feeds
    typed: dict[str, np.ndarray] = {}
    for column in request.columns:
        with errors_of_input(column.name):
            typed[column.name] = _typed_column(request, arrays, column)
    counts = {names[key]: len(array) for key, array in typed.items()}
    check_row_counts(source, counts)
    count = next(iter(counts.values()), 0)
    of = f" of split '{request.data.split}'" if request.data.split is not None else ""
    for column in request.columns:
        where = row_positions(source, names[column.name], range(count), of)
        with errors_of_input(column.name):
            check_limits(typed[column.name], column, where)
    whole = {key: digests[name] for key, name in names.items() if name in digests}
    return make_loaded_rows(typed, request.options, whole)


def _typed_column(
    request: ReadRequest, arrays: Mapping[str, np.ndarray], column: Column
) -> np.ndarray:
    source, name = request.source.text, request.single_feeds[column.name]
    if name not in arrays:
        raise missing_column_error(source, name, column.name, tuple(sorted(arrays)))
    array = arrays[name]
    check_has_rows(request, name, array.shape)
    check_shape(array.shape[1:], column, source, name, None)
    return np.asarray(convert(array, column, source, name), order="C")


def check_has_rows(request: ReadRequest, name: str, shape: tuple[int, ...]) -> None:
    """Raise DataError unless an array of this shape has rows."""
    source = request.source.text
    if not shape:
        raise DataError(
            f"{source}: column '{name}' is a single value, not rows",
            hint="give it a leading dimension with one entry per row",
        )
    if shape[0] == 0 and not request.options.to_predict:
        raise DataError(
            f"{source}: column '{name}' has no rows",
            hint="a source needs at least one row",
        )


def check_row_counts(source: str, counts: Mapping[str, int]) -> None:
    """Raise DataError unless all columns have the same number of rows."""
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{name}' {n}" for name, n in counts.items())
        raise DataError(
            f"{source}: its columns have different numbers of rows: {listed}",
            hint="row i of every column must belong to the same example",
        )
