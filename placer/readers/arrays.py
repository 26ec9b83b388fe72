"""Rows of sources whose columns are arrays, one entry for each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from placer.config.columns import Column
from placer.config.sources import missing_column_error
from placer.errors import DataError
from placer.readers.arguments import ReadRequest
from placer.readers.column import check_limits, check_shape, convert
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
        DataError: for a column that is missing or does not fit its input.
    """
    source, feeds = request.source.text, request.single_feeds
    typed = _convert_columns(source, arrays, request.columns, feeds)
    of = f" of split '{request.data.split}'" if request.data.split is not None else ""
    for column in request.columns:
        position = f"{source}: column '{feeds[column.name]}'"

        def where(i: int, position: str = position) -> str:
            return f"{position}, row {i}{of}"

        check_limits(typed[column.name], column, where)
    whole = {n: digests[name] for n, name in feeds.items() if name in digests}
    count = next(map(len, typed.values()), 0)
    return make_loaded_rows(typed, count, request.options, whole)


def _convert_columns(
    source: str,
    arrays: Mapping[str, np.ndarray],
    columns: Sequence[Column],
    feeds: Mapping[str, str],
) -> dict[str, np.ndarray]:
    """Return the array of each input, by name, in its dtype."""
    typed: dict[str, np.ndarray] = {}
    for column in columns:
        name = feeds[column.name]
        if name not in arrays:
            raise missing_column_error(source, name, column.name, tuple(sorted(arrays)))
        array = arrays[name]
        if array.ndim == 0:
            raise DataError(
                f"{source}: column '{name}' is one value, not rows",
                hint="give it a leading dimension, one entry per row",
            )
        if len(array) == 0:
            raise DataError(
                f"{source}: column '{name}' has no rows",
                hint="a source needs at least one row",
            )
        check_shape(array.shape[1:], column, source, name, None)
        typed[column.name] = np.asarray(convert(array, column, source, name), order="C")
    counts = {feeds[key]: len(array) for key, array in typed.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{name}' {n}" for name, n in counts.items())
        raise DataError(
            f"{source}: its columns have different numbers of rows: {listed}",
            hint="row i of every column belongs to the same example",
        )
    return typed
