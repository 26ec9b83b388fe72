"""Converts the saved arrays of a partition to rows of a table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from placer.plan.settings.sparse.table import Score
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.tables.sparse.hashing import U64
from placer.tables.sparse.partition_arrays import OPTIONAL
from placer.tables.sparse.state import CHUNK, Array, State

Layout = Mapping[str, tuple[str, tuple[int, ...]]]
"""The dtype and the shape of each array, for a partition without rows."""


def put_rows(state: State, rows: Array, saved: Mapping[str, Array]) -> None:
    """Write saved arrays to rows. The rows already contain the keys."""
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
    """Remove the optimizer state from saved arrays of a table with another rule.

    Args:
        saved: the saved arrays.
        layout: the layout of this table.
        dim: the number of values of a row.

    Returns:
        The remaining arrays, and their layout.
    """
    of_rule = ("values", "scalars", "updates")
    rest = {name: array for name, array in saved.items() if name not in of_rule}
    layout_of_rest = {n: each for n, each in layout.items() if n not in of_rule}
    values = {"values": saved["values"][:, :dim]}
    return values | rest, {"values": (layout["values"][0], (0, dim)), **layout_of_rest}


def first_score(settings: Settings) -> float:
    """Return the score of a key with a row that has occurred once."""
    once = 0.0 if settings.score is None else settings.score.no_click
    admit = settings.admit
    return max(once, admit.least) if isinstance(admit, Score) else once


def date_rows(state: State, second: int) -> None:
    """Set the time of all rows without a time to `second`."""
    used = CHUNK * int(state.chunks[2])
    times = state.times[:used]
    times[(state.meta[:used, 1] != 0) & (times == 0)] = second


def completed(
    saved: Mapping[str, Array], layout: Layout, score: float
) -> dict[str, Array]:
    """Adapt saved arrays to the admission and forgetting of this table.

    Missing arrays are filled with initial values. Arrays that are not in the layout are
    removed, if they depend on admission or forgetting.

    Args:
        saved: the saved arrays.
        layout: the layout of this table.
        score: the score of each row, if scores are missing.
    """
    count = len(saved.get("keys", ()))
    begun: dict[str, Array] = {
        "scores": np.full(count, score, np.float32),
        "times": np.zeros(count, np.uint32),
        "filter": np.zeros(layout.get("filter", ("", (0,)))[1], np.uint8),
        "latest": np.zeros(1, np.int64),
    }
    return {
        **{name: array for name, array in begun.items() if name in layout},
        **{name: a for name, a in saved.items() if name in layout or name not in begun},
    }


def saved_of_keys(keys: Array, values: Array) -> dict[str, Array]:
    """Return saved arrays for keys with values, as if each had occurred once before step 1."""
    count, none = keys.size, np.empty(0, np.uint64)
    return {
        "keys": keys,
        "values": values,
        "seen": np.zeros(count, np.uint32),
        "count": np.ones(count, np.uint32),
        "entry_keys": none,
        "entry_words": none,
    }
