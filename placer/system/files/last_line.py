"""Finds the last line of a log, to quote it in a message."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_QUOTED: Final = 400
"""The number of characters to quote."""


def last_line(log: Path) -> str:
    """Return the last line of a log that is not blank, shortened for a message. Return
    "" without such a line or without a log."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 16 * _QUOTED))
            return last_line_of(file.read())
    except OSError:
        return ""


def last_line_of(log: bytes) -> str:
    """Return the last line of the text of a log; see `last_line`."""
    lines = reversed(log.decode(errors="replace").splitlines())
    last = next((line for line in lines if line.strip()), "")
    return last.strip()[:_QUOTED]
