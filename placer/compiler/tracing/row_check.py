"""Checks that a function works row by row: by its equations, or with a few rows.

A function with `batch: rows`, and a metric, must work row by row. Unless its equations
prove this, the function runs on a few rows, once together and once in two halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from placer.errors import PlacerError
from placer.ops.functions.batch_types import PROOF_BATCHES
from placer.ops.functions.mode import EVALUATION, Mode, widest_float
from placer.ops.functions.row_proof import is_by_rows
from placer.place.types import TensorType


def is_proven(
    fn: Callable[..., Any],
    name: str,
    args: str,
    batches: Sequence[int],
    instead: str,
    mode: Mode = EVALUATION,
) -> bool:
    """Return True if the equations of a function prove that it works row by row.

    Raises PlacerError if the proof fails only for one of the model's batch sizes, with
    `instead` as hint.
    """
    if not args or not is_by_rows(fn, args, mode=mode):
        return False
    for rows in batches:
        # For one row JAX omits some equations, so a trace would prove nothing.
        known = (0, 1, *PROOF_BATCHES)
        if rows not in known and not is_by_rows(fn, args, rows, mode):
            raise PlacerError(
                f"{name} works row by row for {PROOF_BATCHES[0]} and"
                f" {PROOF_BATCHES[1]} rows, but behaves differently for {rows}",
                hint=f"{instead}, or make the function do the same for any number of rows",
            )
    return True


def check_rows(
    fn: Callable[..., Any], types: Sequence[TensorType], what: str, instead: str
) -> None:
    """Run a function on a few rows, and on each half of them.

    Raises PlacerError if the results differ. `what` starts its message, and `instead`
    starts its hint.
    """
    rng = np.random.default_rng(0)
    rows = 4
    wide = widest_float() == "float64"
    close = {"rtol": 1e-6, "atol": 1e-7} if wide else {"rtol": 1e-4, "atol": 1e-5}
    arrays = [_random_array(rng, t, t.sizes(rows)) for t in types]
    # The last operand is the position: the step and the row number.
    arrays[-1] = np.stack([np.full(rows, 1), np.arange(rows)], -1).astype(np.uint32)
    run = jax.jit(fn)
    whole, *halves = (
        jax.tree.leaves(run(*_rows_of(arrays, types, part)))
        for part in (slice(rows), slice(rows // 2), slice(rows // 2, rows))
    )
    for one, first, second in zip(whole, *halves, strict=True):
        apart = np.concatenate([first, second])
        if not np.allclose(one, apart, equal_nan=True, **close):
            raise PlacerError(
                f"{what} returns different results for half of the rows",
                hint=f"{instead}, or make each row independent of other rows",
            )


def _rows_of(
    arrays: Sequence[Any], types: Sequence[TensorType], part: slice
) -> list[Any]:
    """Return the arrays, with a slice of the rows of arrays that have rows."""
    pairs = zip(arrays, types, strict=True)
    return [array[part] if kind.has_rows else array for array, kind in pairs]


def _random_array(
    rng: np.random.Generator, kind: TensorType, sizes: tuple[int, ...]
) -> Any:
    if kind.is_float:
        return rng.normal(size=sizes).astype(kind.dtype)
    return rng.integers(0, 2 if kind.dtype == "bool" else 3, sizes).astype(kind.dtype)
