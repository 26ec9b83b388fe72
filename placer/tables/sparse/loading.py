"""Saved arrays of a partition, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from placer.config.sparse import Score
from placer.config.sparse import SparseTable as Settings
from placer.tables.sparse.hashing import U64
from placer.tables.sparse.partition_arrays import OPTIONAL
from placer.tables.sparse.state import CHUNK, Array, State

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""The dtype and the shape of each array of a partition without rows."""
SEEN_BEFORE: Final = U64(1) << U64(32)
"""What `meta` of the state has of a key that has occurred once, before the first step."""


def put_rows(state: State, rows: Array, saved: Mapping[str, Array]) -> None:
    """Write saved arrays to rows that have their keys."""
    values = saved["values"]
    state.values[rows, : values.shape[1]] = values
    count = saved["count"].astype(np.uint64)
    state.meta[rows, 1] = (count << U64(32)) | saved["seen"]
    for name in OPTIONAL:
        if name in saved:
            getattr(state, name)[rows] = saved[name]


def without_state(
    saved: Mapping[str, Array], layout: Layout, dim: int
) -> tuple[dict[str, Array], Layout]:
    """Return saved arrays of a table with another rule, and their layout in this one,
    without what the rule keeps."""
    of_rule = ("values", "scalars", "updates")
    rest = {name: array for name, array in saved.items() if name not in of_rule}
    layout_of_rest = {n: each for n, each in layout.items() if n not in of_rule}
    values = {"values": saved["values"][:, :dim]}
    return values | rest, {"values": (layout["values"][0], (0, dim)), **layout_of_rest}


def first_score(settings: Settings) -> float:
    """Return the score of a key that has occurred once and has a row."""
    once = 0.0 if settings.score is None else settings.score.no_click
    admit = settings.admit
    return max(once, admit.least) if isinstance(admit, Score) else once


def date_rows(state: State, second: int) -> None:
    """Let the keys that have only occurred before the first step have done so at a time."""
    used = CHUNK * int(state.chunks[2])
    times = state.times[:used]
    times[(state.meta[:used, 1] == SEEN_BEFORE) & (times == 0)] = second


def saved_of_keys(layout: Layout, keys: Array) -> dict[str, Array]:
    """Return saved arrays of keys that have occurred once, before the first step: zeros,
    where nothing else is known."""
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
