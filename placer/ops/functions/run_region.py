"""Runs one region of a function in a node, which traces and cuts the function again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax

from placer.errors import PlacerError
from placer.ops.functions.batch_types import TRACE_BATCHES
from placer.ops.functions.cut import ValueSource
from placer.ops.functions.fingerprint import fingerprint, has_fingerprint
from placer.ops.functions.function import trace_function
from placer.ops.functions.mode import EVALUATION, Mode
from placer.ops.functions.replica_regions import compute_parts, shape_of_parts
from placer.place.types import TensorType


def run_region(
    fn: Callable[..., Any],
    text: str,
    region: int,
    rows: int,
    inputs: Sequence[jax.Array],
    expected: str,
    mode: Mode = EVALUATION,
    random: Callable[[ValueSource], Any] | None = None,
    count: int = 1,
) -> list[jax.Array]:
    """Compute the results of a region.

    Args:
        text: the arguments of `fn`.
        rows: the number of rows; if the mode has parts, of each part.
        count: the number of parts in `inputs`.
        expected: the fingerprint of the compiled region (`fingerprint_of`), or empty.
        random: returns the key of the step (`STEP_KEY`), or the numbers of the rows
            (`ROW_NUMBERS`), for regions that draw random numbers. If the mode has parts,
            it returns the key or the number (`PART_NUMBER`) of each part.

    Raises:
        PlacerError: if the region has another fingerprint, or the function has no such
            region for `rows` rows.
    """
    if expected and not _is_expected(fn, text, region, rows, expected, mode):
        raise PlacerError(
            f"{fn.__name__} is not the function that was compiled",
            hint="make its file the same in each import: seed np.random, sort sets,"
            " and check that the importing code does not change it",
        )
    regions = trace_function(fn, text, rows, mode).cut.regions
    if region >= len(regions):
        raise PlacerError(
            f"{fn.__name__} has no region {region} for {rows} rows, only {len(regions)}",
            hint=_ROWS_HINT,
        )
    chosen = regions[region]
    values = chosen.closed.in_avals[: len(chosen.operands)]
    split = chosen.split
    shapes = [x.shape for x in values]
    if split is not None:
        kinds = zip(shapes, split.operands, strict=True)
        shapes = [shape_of_parts(*pair, count, rows) for pair in kinds]
    pairs = zip(values, shapes, strict=True)
    wanted = [TensorType(str(x.dtype), shape) for x, shape in pairs]
    actual = [TensorType(str(x.dtype), x.shape) for x in inputs]
    if wanted != actual:
        types = f"{', '.join(map(str, wanted))}, not {', '.join(map(str, actual))}"
        raise PlacerError(
            f"region {region} of {fn.__name__} takes {types} for {rows} rows",
            hint=_ROWS_HINT,
        )
    assert random is not None or not chosen.random, "the region draws random numbers"
    drawn = [random(each) for each in chosen.random] if random is not None else []
    if split is None:
        return chosen(*inputs, *drawn)
    return compute_parts(chosen.closed, split, count, rows, inputs, drawn)


def fingerprint_of(
    fn: Callable[..., Any], text: str, region: int, mode: Mode = EVALUATION
) -> str:
    """Return the fingerprint of a region, for other processes to compare."""
    regions = trace_function(fn, text, TRACE_BATCHES[0], mode).cut.regions
    return fingerprint(regions[region])


@lru_cache(maxsize=256)
def _is_expected(
    fn: Callable[..., Any],
    text: str,
    region: int,
    rows: int,
    expected: str,
    mode: Mode,
) -> bool:
    regions = trace_function(fn, text, TRACE_BATCHES[0], mode, rows).cut.regions
    return region < len(regions) and has_fingerprint(regions[region], expected)


_ROWS_HINT = "trace the same operations for every number of rows"
