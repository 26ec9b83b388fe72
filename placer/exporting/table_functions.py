"""Functions that `tables.py` of an exported model contains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq

Table = tuple[np.ndarray, np.ndarray]
"""The keys of a table, uint64[n] and sorted, and their rows, of shape [n, dim]."""


def load_table(path: str) -> Table:
    """Return the table in a Parquet file with the columns `key` and `row`."""
    file = pq.ParquetFile(path, page_checksum_verification=True)
    kind = file.schema_arrow.field("row").type
    count = file.metadata.num_rows
    keys = np.empty(count, np.uint64)
    rows = np.empty((count, kind.list_size), kind.value_type.to_pandas_dtype())
    start = 0
    for batch in file.iter_batches(1 << 16, columns=["key", "row"]):
        stop = start + batch.num_rows
        keys[start:stop] = batch.column(0).to_numpy().view(np.uint64)
        rows[start:stop].reshape(-1)[:] = batch.column(1).flatten().to_numpy()
        start = stop
    if np.all(keys[:-1] < keys[1:]):
        return keys, rows
    order = np.argsort(keys)
    return keys[order], rows[order]


def look_up_rows(
    table: Table, keys: Any, absent: Callable[[np.ndarray], Any]
) -> np.ndarray:
    """Return the row of each key.

    Args:
        table: the table.
        keys: integers of any shape.
        absent: returns the rows of keys, uint64[n], that are not in the table.

    Returns:
        An array of the shape of `keys` and one more dimension, the row.
    """
    known, rows = table
    keys = np.asarray(keys)
    wanted = as_bits(keys).reshape(-1)
    at = np.searchsorted(known, wanted)
    at[at == known.size] = 0
    found = known[at] == wanted if known.size else np.zeros(wanted.shape, bool)
    out = np.empty((wanted.size, rows.shape[1]), rows.dtype)
    out[found] = rows[at[found]]
    if not found.all():
        out[~found] = absent(wanted[~found])
    return out.reshape(*keys.shape, rows.shape[1])


def as_bits(keys: np.ndarray) -> np.ndarray:
    """Return integers of any dtype as uint64, like the keys of a table."""
    if keys.dtype != np.uint64:
        keys = keys.astype(np.int64)
    return keys.view(np.uint64)
