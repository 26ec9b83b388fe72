"""Checks that a source fits the inputs, by its columns and its first rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from placer.errors import SpecWarning
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.window import Window
from placer.readers.arguments import ReadOptions
from placer.readers.file_sets import list_files
from placer.readers.order import Order
from placer.readers.pieces import PieceRows
from placer.readers.rows import LateRows, LoadedRows
from placer.readers.source import open_pieces, open_source
from placer.readers.streams.first_block import read_first_block
from placer.readers.streams.lane_source import open_lanes
from placer.readers.window_advice import Cost
from placer.system.callsite import warn_at_caller

WHOLE_NBYTES: Final = 4 << 20
"""Files up to this size are read whole."""
_GZIP_RATIO: Final = 8
"""The estimated compression ratio of a table."""
FIRST_ROWS: Final = 10_000
"""The number of rows to read of a larger file."""
FIRST_ROWS_OF_CODE: Final = 100
"""The number of rows to read of a generator."""
FIRST_BLOCK_LIMIT: Final = 5.0
"""The longest wait for the first block of a stream of a function, in seconds."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The part of a source that was checked.

    Attributes:
        rows: the number of rows that were read.
        files: the number of files of the source.
        pieces: the opened pieces of Parquet files, if they are not read through a window.
        whole: an estimate for all rows of `pieces`.
    """

    rows: int
    files: int
    pieces: PieceRows | None = None
    whole: Cost | None = None


def check_source(
    data: RowSource,
    columns: Sequence[Column],
    folder: Path,
    *,
    all_files: bool = False,
    to_predict: bool = False,
) -> FirstRows | None:
    """Open a source, and convert its first rows to the dtypes of the inputs.

    Args:
        data: the settings of the source.
        columns: the inputs to read from it.
        folder: the folder that paths and modules are relative to.
        all_files: check the columns of all files of a set. By default, files after the
            first rows are not opened.
        to_predict: the rows are for a prediction (see `ReadOptions`).

    Returns:
        The part that was read; None for all rows, and for a stream whose first lane has
        given no rows, with a warning.

    Raises:
        DataError: if the source cannot be read or does not fit the inputs. It is a
            SourceError if it concerns a key of the spec.
        RunError: if the code of a `python:` source raises.
    """
    if data.stream is not None and data.stream.lanes is not None:
        return _check_lanes(data, columns, folder)
    most, pieces, read = _most_rows(data, folder), None, None
    options = ReadOptions(first_rows=most, all_files=all_files, to_predict=to_predict)
    if isinstance(data.shuffle, Window):
        open_pieces(data, columns, folder, options)
    elif most and all_files and data.parsed.kind == "parquet":
        pieces = open_pieces(data, columns, folder, options)
    rows = open_source(data, columns, folder, options)
    if isinstance(rows, LateRows):
        read = FIRST_ROWS_OF_CODE if rows.rows > FIRST_ROWS_OF_CODE else None
        rows.take(np.arange(read or rows.rows))
    elif most is not None and (data.split is not None or rows.rows >= most):
        files, whole = len(list_files(data.parsed, folder)), None
        if pieces is not None and isinstance(rows, LoadedRows):
            part = pieces.rows / rows.rows
            begin = time.thread_time()  # the first reading has loaded modules
            open_source(data, columns, folder, options)
            seconds = time.thread_time() - begin
            whole = Cost(pieces.rows, part * seconds, int(part * rows.nbytes))
        return FirstRows(max(most, rows.rows), files, pieces, whole)
    # This raises an error if an epoch has no batch.
    if not to_predict and data.stream is None:
        Order(rows.rows, data.batch, data.shuffle, data.seed, data.remainder)
    return FirstRows(read, 1) if read else None


def _check_lanes(
    data: RowSource, columns: Sequence[Column], folder: Path
) -> FirstRows | None:
    source = open_lanes(data, columns, folder, ReadOptions())
    rows = read_first_block(source, FIRST_BLOCK_LIMIT)
    if rows:
        return FirstRows(rows, 1)
    what = "has given no rows yet" if rows is None else "has ended without rows"
    text = f"{source.where(0)} {what}; its blocks are not checked"
    warn_at_caller(text, SpecWarning)
    return None


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
