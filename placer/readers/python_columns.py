"""Rows of a `python:` source that returns whole columns, one array for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from placer.errors import DataError
from placer.readers.arguments import ReadRequest
from placer.readers.arrays import make_rows
from placer.readers.digests import digest
from placer.readers.python_values import needs_columns
from placer.readers.rows import LoadedRows
from placer.readers.whole_numbers import to_array


def read_columns(request: ReadRequest, columns: Mapping[str, Any]) -> LoadedRows:
    """Return the rows of columns with one entry per row, [rows, ...].

    Raises:
        DataError: if a column does not fit, or a setting works only for rows.
    """
    source = request.source.text
    refuse_row_settings(request, "returns columns")
    wanted = {request.single_feeds[column.name] for column in request.used}
    unread = np.empty(0)
    arrays = {
        name: _array(source, name, column) if name in wanted else unread
        for name, column in ((str(key), column) for key, column in columns.items())
    }
    read = wanted & arrays.keys() if request.options.with_digests else ()
    return make_rows(request, arrays, {name: digest(arrays[name]) for name in read})


def refuse_row_settings(request: ReadRequest, what: str) -> None:
    """Raise DataError if a setting works on one value at a time.

    `what` is the verb phrase about the source in the message.
    """
    lists = any(isinstance(feed, list) for feed in request.feeds.values())
    if lists or needs_columns(request) or request.data.python:
        raise DataError(
            f"{request.source.text} {what}, but column options, features, lists of"
            " columns and globs work only for rows",
            hint="yield a dict for each row",
        )


def _array(source: str, name: str, column: Any) -> np.ndarray:
    try:
        return to_array(column)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{source}: column '{name}': {error}",
            hint="a column must be an array with an entry for each row",
        ) from error
