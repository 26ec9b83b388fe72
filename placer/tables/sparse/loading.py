"""Saved arrays of a partition, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placer.tables.sparse.hashing import U64
from placer.tables.sparse.partition_arrays import OPTIONAL
from placer.tables.sparse.state import Array, State


def put_rows(state: State, rows: Array, saved: Mapping[str, Array]) -> None:
    """Write saved arrays to rows that have their keys."""
    state.values[rows] = saved["values"]
    count = saved["count"].astype(np.uint64)
    state.meta[rows, 1] = (count << U64(32)) | saved["seen"]
    for name in OPTIONAL:
        if name in saved:
            getattr(state, name)[rows] = saved[name]


def saved_of_keys(
    layout: Mapping[str, tuple[str, tuple[int, ...]]], keys: Array
) -> dict[str, Array]:
    """Return saved arrays of keys that have occurred once, before the first step: zeros,
    where nothing else is known.

    `layout` has the dtype and the shape of each array of a partition without rows.
    """
    count = keys.size
    saved = {
        name: np.zeros((count, *shape[1:]), dtype)
        for name, (dtype, shape) in layout.items()
    }
    for name in ("entry_keys", "entry_words"):
        saved[name] = saved[name][:0]
    for name in ("filter", "latest"):
        if name in layout:
            dtype, shape = layout[name]
            saved[name] = np.zeros(shape, dtype)
    return saved | {"keys": keys, "count": np.ones(count, np.uint32)}
