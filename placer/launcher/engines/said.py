"""Formats the output of an engine's tool for a message."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from placer.system.printable import make_printable

_LAST: Final = 9
"""The number of last lines to show, besides the first one."""
_WIDTH: Final = 400
"""The number of characters of a line to show."""
_READ: Final = 1 << 16
"""The number of bytes to read at the end of a file."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def lines_of(said: str | bytes) -> list[str]:
    r"""Return the first line and the last nine lines of a text, without control
    characters.

    The first line often contains the cause, and the last lines the consequence.

    >>> lines_of("a\n\n\x1b[31mb\x1b[0m\n")
    ['a', 'b']
    """
    if isinstance(said, bytes):
        said = said.decode(errors="replace")
    stripped = (line.strip() for line in _COLOUR.sub("", said).splitlines())
    lines = [make_printable(line)[:_WIDTH] for line in stripped if line]
    if len(lines) > 2 + _LAST:
        lines[1:-_LAST] = ["..."]
    return lines


def quoting(message: str, said: str | bytes) -> str:
    r"""Return a message followed by the output of a tool, on one line or indented below
    it.

    >>> quoting("sbatch failed", "Invalid account")
    'sbatch failed: Invalid account'
    >>> print(quoting("sbatch failed", "Invalid account\nInvalid partition"))
    sbatch failed:
        Invalid account
        Invalid partition
    """
    lines = lines_of(said)
    if len(lines) < 2:
        return ": ".join([message, *lines])
    return "\n    ".join([f"{message}:", *lines])


def in_one_line(said: str | bytes) -> str:
    """Return the output of a tool on one line."""
    return " ".join(lines_of(said))


def end_of_file(path: Path) -> str:
    """Return the last bytes of a file, or nothing if the file does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _READ))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
