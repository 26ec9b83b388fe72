"""Opening a source: a spec's `data` entry becomes rows of the inputs' types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from placer.config.csv import Csv
from placer.config.sources import Source, assign, check_split, no_column
from placer.errors import DataError
from placer.readers import csv_rows, npz, python_rows, sklearn_sets
from placer.readers.arguments import Reading
from placer.readers.column import Column, check_limits, check_shape, convert
from placer.readers.digests import digest
from placer.readers.rows import Rows, loaded

_ALONE = Reading()


def open_source(
    source: str,
    columns: Sequence[Column],
    *,
    mapping: Mapping[str, str | list[str]] | None,
    split: str | None,
    folder: Path,
    csv: Csv | None = None,
    reading: Reading = _ALONE,
) -> Rows:
    """Read a source whole, one of `csv:PATH`, `npz:PATH` and `sklearn:NAME`, or open
    one of `python:MODULE:FUNCTION`.

    `columns` are the inputs to feed, `mapping` which column of the source feeds each,
    `split` `train` or `test` of a `sklearn:` set or a `csv:` file, `folder` where
    relative paths begin, `csv` how the text of a `csv:` file is read. `mapping` is also
    that of the inputs that other nodes take, where `reading` names any. DataError where
    the source cannot be read or does not fit the inputs; RunError where a `python:`
    source raises.
    """
    found = Source.parse(source)
    check_split(found, split)
    used = (*columns, *reading.others)
    assigned = assign(found, {c.name: c.dtype for c in used}, mapping)
    if found.kind == "csv":
        form = csv or Csv()
        return csv_rows.read(found, columns, assigned, folder, split, form, reading)
    # Only of a csv: file an input may take a list of columns.
    feeds = {name: one for name, one in assigned.items() if isinstance(one, str)}
    if found.kind == "python":
        return python_rows.read(found, columns, feeds, folder, reading)
    if found.kind == "npz":
        wanted = {feeds[column.name] for column in columns}
        arrays, digests = npz.read(found, folder, wanted)
    else:
        arrays = sklearn_sets.read(found, split)
        digests = {name: digest(array) for name, array in arrays.items()}
    typed = _typed(found.text, arrays, columns, feeds)
    of = f" of split '{split}'" if split is not None else ""
    for column in columns:
        named = f"{found.text}: column '{feeds[column.name]}'"

        def where(i: int, named: str = named) -> str:
            return f"{named}, row {i}{of}"

        check_limits(typed[column.name], column, where)
    whole = {n: digests[named] for n, named in feeds.items() if named in digests}
    return loaded(typed, next(map(len, typed.values()), 0), reading, whole)


def _typed(
    source: str,
    arrays: Mapping[str, np.ndarray],
    columns: Sequence[Column],
    feeds: Mapping[str, str],
) -> dict[str, np.ndarray]:
    """The columns in the inputs' dtypes, by input."""
    typed: dict[str, np.ndarray] = {}
    for column in columns:
        named = feeds[column.name]
        if named not in arrays:
            raise no_column(source, named, column.name, tuple(sorted(arrays)))
        array = arrays[named]
        if array.ndim == 0:
            raise DataError(
                f"{source}: column '{named}' is one value, not rows",
                hint="give it a leading dimension, one entry per row",
            )
        if len(array) == 0:
            raise DataError(
                f"{source}: column '{named}' has no rows",
                hint="a source needs at least one row",
            )
        check_shape(array.shape[1:], column, source, named, None)
        typed[column.name] = np.asarray(
            convert(array, column, source, named), order="C"
        )
    counts = {feeds[name]: len(array) for name, array in typed.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{name}' {n}" for name, n in counts.items())
        raise DataError(
            f"{source}: its columns have different numbers of rows: {listed}",
            hint="row i of every column belongs to the same example",
        )
    return typed
