"""Advice about a window that makes reading a file slow, or large."""

from __future__ import annotations

from placer.plan.settings.data.window import Window
from placer.readers.pieces import PieceRows

MANY_ROWS = 1_000_000
"""The rows that are read again in an epoch from which on it is worth a word."""


def advise(rows: PieceRows, window: Window, nbytes: int) -> str | None:
    """Return what makes reading slow or large, and what to do; None if nothing does.

    Args:
        rows: the opened source.
        window: how it is read.
        nbytes: the memory that all nodes together may use for open pieces, in bytes.
    """
    source, pieces = rows.columns.request.source.text, len(rows.counts)
    lanes, remedy = window.parts, "write smaller row groups, or use fewer lanes"
    need = lanes * rows.open_nbytes
    if need > nbytes:
        return (
            f"{source}: {lanes} lanes, each of which reads a piece, may need"
            f" {need / 1e9:.1f} GB besides the window, and {nbytes / 1e9:.1f} GB are"
            f" available; {remedy}"
        )
    again = lanes * rows.rows // max(1, 2 * pieces)
    if again > max(MANY_ROWS, rows.rows // 4):
        return (
            f"{source} has {pieces} pieces for {lanes} lanes, which begin within pieces:"
            f" about {again:,} rows are read again in each epoch; {remedy}"
        )
    return None
