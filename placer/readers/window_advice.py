"""Advice about a window that makes reading a file slow or large."""

from __future__ import annotations

from placer.plan.settings.data.window import Window
from placer.readers.pieces import PieceRows

MANY_ROWS = 1_000_000
"""The number of rows that an epoch may read more than once without a warning."""


def advise(rows: PieceRows, window: Window, nbytes: int) -> str | None:
    """Return the problem of a window and a remedy; None without a problem.

    Args:
        rows: the opened source.
        window: the window.
        nbytes: the memory for open pieces of all nodes together, in bytes.
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
    if again > max(MANY_ROWS, rows.rows // 4):
        return (
            f"{source} has {pieces} pieces for {lanes} lanes, and lanes start"
            f" inside of pieces: about {again:,} rows are read again in each"
            f" epoch; {remedy}"
        )
    return None
