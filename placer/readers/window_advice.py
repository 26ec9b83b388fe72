"""Advice about a window that makes reading a file slow or large, or would prevent that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.window import DEFAULT_LANES, Window
from placer.readers.pieces import PieceRows

MANY_ROWS = {"epoch": 1_000_000, "pass": 100_000}
"""The number of rows that an epoch, or a pass of a stream, may read more than once without a
warning."""
ADVISED_WINDOW = 131_072
"""The rows of a window to advise. Sources of twice as many rows may need one."""
FEW_LANES = 8
"""A window with fewer lanes is not advised, because it hardly shuffles."""
SLOW_SECONDS = 5.0
"""The time to read all rows from which a window is advised."""
LARGE_PART = 4
"""A window is advised from this fraction of the available memory, 1 / LARGE_PART."""


def advise(
    rows: PieceRows,
    window: Window,
    nbytes: int,
    each: Literal["epoch", "pass"] = "epoch",
) -> str | None:
    """Return the problem of a window and a remedy; None without a problem.

    Args:
        rows: the opened source.
        window: the window.
        nbytes: the memory for open pieces of all nodes together, in bytes.
        each: how often all rows are read: in each epoch, or in a pass.
    """
    source, pieces = rows.columns.request.source.text, len(rows.counts)
    lanes, remedy = window.parts, "write smaller row groups, or use fewer lanes"
    need = lanes * rows.open_nbytes
    if need > nbytes:
        return (
            f"{source}: {lanes} lanes, with one open piece each, may need"
            f" {need / 1e9:.1f} GB besides the window, but only {nbytes / 1e9:.1f}"
            f" GB are available; {remedy}"
        )
    again = lanes * rows.rows // max(1, 2 * pieces)
    if again > max(MANY_ROWS[each], rows.rows // 4):
        return (
            f"{source} has {pieces} piece{'s' * (pieces != 1)} for {lanes} lanes, and lanes"
            f" start inside of pieces: about {again:,} rows are read again in each {each};"
            f" {remedy}"
        )
    return None


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost for a process to read all rows of a source before the first step.

    Attributes:
        rows: the number of rows.
        seconds: the time.
        nbytes: the memory for the rows, in bytes.
    """

    rows: int
    seconds: float
    nbytes: int


def advise_window(
    data: RowSource,
    key: str,
    cost: Cost,
    processes: int,
    available: int,
    opened: Callable[[], PieceRows],
) -> str | None:
    """Return the advice to read a source through a window; None if it needs none.

    Args:
        data: the settings of the source.
        key: its key in `data` of a spec.
        cost: the cost to read all rows.
        processes: the number of processes that read the source.
        available: the memory that was available before, in bytes.
        opened: opens the source in pieces. It is called for a Parquet file only, which may
            have too few pieces for a window.
    """
    source = data.parsed
    is_packed = source.path.endswith(".gz")
    can_have_one = source.declaration.pieces and data.split is None and not is_packed
    has_one = isinstance(data.shuffle, Window)
    nbytes = cost.nbytes * processes
    is_expensive = cost.seconds > SLOW_SECONDS or nbytes * LARGE_PART > available
    if has_one or not can_have_one or not is_expensive:
        return None
    if cost.rows < 2 * ADVISED_WINDOW:
        return None
    lanes = min(DEFAULT_LANES, data.batch)
    if data.parsed.kind == "parquet":
        pieces = opened()
        lanes = min(lanes, len(pieces.counts) // 2)
        if lanes < FEW_LANES or advise(
            pieces, Window(ADVISED_WINDOW, lanes), available
        ):
            return None
    return (
        f"{data.source}: each process that reads it needs about {cost.seconds:.1f} s and"
        f" {cost.nbytes / 1e6:,.0f} MB for all {cost.rows:,} rows before the first step;"
        f" with 'shuffle: {Window(ADVISED_WINDOW, lanes)}' in data.{key}, rows are read"
        " during training: in another order, and again in each epoch ('shuffle: false'"
        " keeps the order)"
    )
