"""Open a source of a spec's `data` section, as rows of the inputs' types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from placer.config.csv import Csv
from placer.config.sources import (
    Source,
    assign_columns,
    check_split,
    missing_column_error,
)
from placer.errors import DataError
from placer.readers import csv_rows, npz, python_rows, sklearn_sets
from placer.readers.arguments import ReadOptions
from placer.readers.column import Column, check_limits, check_shape, convert
from placer.readers.digests import digest
from placer.readers.rows import Rows, make_loaded_rows

_DEFAULT_OPTIONS = ReadOptions()


def open_source(
    source: str,
    columns: Sequence[Column],
    *,
    mapping: Mapping[str, str | list[str]] | None,
    split: str | None,
    folder: Path,
    csv: Csv | None = None,
    options: ReadOptions = _DEFAULT_OPTIONS,
) -> Rows:
    """Read a source `csv:PATH`, `npz:PATH` or `sklearn:NAME`, or open a source
    `python:MODULE:FUNCTION`.

    Args:
        source: the text of the source.
        columns: the inputs to read.
        mapping: the column, or columns of a `csv:` file, that feed an input; inputs
            that are left out have a column of their name or type. It may have entries
            for `options.other_columns` too.
        split: `train` or `test` of a `sklearn:` set or a `csv:` file; None for all
            rows.
        folder: the folder that paths are relative to.
        csv: how the text of a `csv:` file is read.
        options: digests, progress reports and limits.

    Raises:
        DataError: if the source cannot be read or does not fit the inputs.
        RunError: if the code of a `python:` source raises.
    """
    parsed = Source.parse(source)
    check_split(parsed, split)
    used = (*columns, *options.other_columns)
    assigned = assign_columns(parsed, {c.name: c.dtype for c in used}, mapping)
    if parsed.kind == "csv":
        form = csv or Csv()
        return csv_rows.read(parsed, columns, assigned, folder, split, form, options)
    # Only an input that is read from a csv: file may have a list of columns.
    feeds = {name: one for name, one in assigned.items() if isinstance(one, str)}
    if parsed.kind == "python":
        return python_rows.read(parsed, columns, feeds, folder, options)
    if parsed.kind == "npz":
        wanted = {feeds[column.name] for column in columns}
        arrays, digests = npz.read(parsed, folder, wanted)
    else:
        arrays = sklearn_sets.read(parsed, split)
        digests = {name: digest(array) for name, array in arrays.items()}
    typed = _convert_columns(parsed.text, arrays, columns, feeds)
    of = f" of split '{split}'" if split is not None else ""
    for column in columns:
        position = f"{parsed.text}: column '{feeds[column.name]}'"

        def where(i: int, position: str = position) -> str:
            return f"{position}, row {i}{of}"

        check_limits(typed[column.name], column, where)
    whole = {n: digests[name] for n, name in feeds.items() if name in digests}
    return make_loaded_rows(typed, next(map(len, typed.values()), 0), options, whole)


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
