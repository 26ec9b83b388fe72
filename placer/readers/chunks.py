"""Rows of files that are read in batches of several columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from math import prod
from typing import TypeVar

import numpy as np

from placer.config.columns import Column, select_columns
from placer.errors import DataError
from placer.readers.arguments import ReadRequest
from placer.readers.digests import join_digests
from placer.readers.rows import LoadedRows, make_loaded_rows
from placer.readers.split import split_rows

T = TypeVar("T", bound=Sized)
"""The values of a column in some rows."""


def columns_of(
    request: ReadRequest, column: Column, names: Sequence[str]
) -> tuple[str, ...]:
    """Return the columns that feed an input, of those of the file; DataError if they
    do not fit it."""
    return select_columns(request.source, column, request.feeds[column.name], names)


def collect_batches(
    request: ReadRequest,
    feeds: Mapping[str, Sequence[str]],
    batches: Iterable[Mapping[str, T]],
    parse: Callable[[Column, str, T, int], np.ndarray],
    add_digest: Callable[[T, int], int],
    first: int = 0,
) -> LoadedRows:
    """Return all rows of a file, or those of a split.

    Args:
        request: the inputs.
        feeds: the columns that feed each input, `options.other_columns` too.
        batches: the columns of each batch of rows, by name.
        parse: returns values of an input, [rows, ...] and of its dtype. It is called
            with the input, the name of a column, the column's values in a batch, and
            the number of the first row.
        add_digest: returns the digest of a column up to and with a batch, given its
            values in the batch and the digest of the rows before.
        first: the number of the first row in the file, for messages.

    Raises:
        DataError: if there are no rows.
    """
    chunks: dict[str, list[np.ndarray]] = {c.name: [] for c in request.columns}
    digests = dict.fromkeys((name for names in feeds.values() for name in names), 0)
    count = 0
    for batch in batches:
        rows = len(next(iter(batch.values())))
        for column in request.columns:
            names = feeds[column.name]
            size = prod(column.shape) // max(1, len(names))
            chunk = np.empty((rows, len(names), size), column.dtype)
            for j, name in enumerate(names):
                values = parse(column, name, batch[name], first + count)
                chunk[:, j] = values.reshape(rows, size)
            chunks[column.name].append(chunk)
        if request.options.with_digests:
            for name, cells in batch.items():
                digests[name] = add_digest(cells, digests[name])
        count += rows
        request.options.report(count)
    arrays = join_chunks(request, chunks)
    whole = {
        key: join_digests(digests[name] for name in names)
        for key, names in feeds.items()
    }
    return make_loaded_rows(arrays, request.options, whole)


def join_chunks(
    request: ReadRequest, chunks: dict[str, list[np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the rows of a split by input, from the chunks of all rows.

    `chunks` has arrays of shape [rows, ...] and of the input's dtype for each input;
    they are removed from it. Raises DataError if there are no rows, unless they are
    to be predicted.
    """
    arrays = {}
    for column in request.columns:
        rows = chunks.pop(column.name)
        count = sum(map(len, rows))
        if count == 0 and not request.options.to_predict:
            hint = "a source needs at least one row"
            raise DataError(f"{request.source.text} has no rows", hint=hint)
        empty = np.empty((0, 1), column.dtype)
        whole = np.concatenate(rows or [empty]).reshape(count, *column.shape)
        arrays[column.name] = whole[split_rows(count, request.data.split)]
    return arrays
