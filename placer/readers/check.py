"""Check that a source fits the inputs, by its columns and its first rows."""

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
from placer.readers.order import Order
from placer.readers.rows import LateRows
from placer.readers.source import open_pieces, open_source

WHOLE_NBYTES: Final = 4 << 20
"""Files of at most this size are read whole."""
_GZIP_RATIO: Final = 8
"""About how much larger a table is than its compressed file."""
FIRST_ROWS: Final = 10_000
"""The rows that are read of a larger file."""
FIRST_ROWS_OF_CODE: Final = 100
"""The rows that are read of those that a function yields."""


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
        columns: the inputs that are read from it.
        folder: the folder that paths and modules are relative to.
        to_predict: as in `ReadOptions`.

    Returns:
        How many rows were read, the first of the source; None if all were.

    Raises:
        DataError: if the source cannot be read or does not fit the inputs; a
            SourceError if a key of the spec is about it.
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
        return max(most, rows.rows)  # the number of all rows is not known
    else:
        most = None
    if not to_predict:  # raises an error if an epoch has no batch
        Order(rows.rows, data.batch, data.shuffle, data.seed, data.remainder)
    return most


def _most_rows(data: RowSource, folder: Path) -> int | None:
    """Return how many rows of a source are read; None for all."""
    source = data.parsed
    if source.kind == "python":
        return FIRST_ROWS_OF_CODE
    if source.kind == "sklearn":
        return None
    path = folder / source.path
    # A file that is not there, or is no file, is reported when it is opened.
    with suppress(OSError):
        nbytes = path.stat().st_size * (_GZIP_RATIO if path.suffix == ".gz" else 1)
        if nbytes > WHOLE_NBYTES:
            return FIRST_ROWS
    return None
