"""Checks that a source fits the inputs, by its columns and its first rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.window import Window
from placer.readers.arguments import ReadOptions
from placer.readers.file_sets import list_files
from placer.readers.order import Order
from placer.readers.rows import LateRows
from placer.readers.source import open_pieces, open_source

WHOLE_NBYTES: Final = 4 << 20
"""Files up to this size are read whole."""
_GZIP_RATIO: Final = 8
"""The estimated compression ratio of a table."""
FIRST_ROWS: Final = 10_000
"""The number of rows to read of a larger file."""
FIRST_ROWS_OF_CODE: Final = 100
"""The number of rows to read of a generator."""


def check_source(
    data: RowSource,
    columns: Sequence[Column],
    folder: Path,
    *,
    to_predict: bool = False,
) -> int | None:
    """Open a source, and convert its first rows to the dtypes of the inputs.

    Args:
        data: the settings of the source.
        columns: the inputs to read from it.
        folder: the folder that paths and modules are relative to.
        to_predict: the rows are for a prediction (see `ReadOptions`).

    Returns:
        The number of rows that were read; None for all rows.

    Raises:
        DataError: if the source cannot be read or does not fit the inputs. It is a
            SourceError if it concerns a key of the spec.
        RunError: if the code of a `python:` source raises.
    """
    most = _most_rows(data, folder)
    options = ReadOptions(first_rows=most, to_predict=to_predict)
    rows = open_source(data, columns, folder, options)
    if isinstance(data.shuffle, Window):
        open_pieces(data, columns, folder, options)
    if isinstance(rows, LateRows):
        most = FIRST_ROWS_OF_CODE if rows.rows > FIRST_ROWS_OF_CODE else None
        rows.take(np.arange(most or rows.rows))
    elif most is not None and (data.split is not None or rows.rows >= most):
        return max(most, rows.rows)  # the total number of rows is unknown
    else:
        most = None
    if (
        not to_predict and data.stream is None
    ):  # raises an error if an epoch has no batch
        Order(rows.rows, data.batch, data.shuffle, data.seed, data.remainder)
    return most


def _most_rows(data: RowSource, folder: Path) -> int | None:
    source = data.parsed
    if source.kind == "python":
        return FIRST_ROWS_OF_CODE
    if source.kind == "sklearn":
        return None
    # If a file is missing or not a file, opening it raises an error later.
    with suppress(OSError):
        paths = [folder / path for path in list_files(source, folder)]
        nbytes = sum(
            path.stat().st_size * (_GZIP_RATIO if path.suffix == ".gz" else 1)
            for path in paths
        )
        if nbytes > WHOLE_NBYTES:
            return FIRST_ROWS
    return None
