"""What the tool of an engine has said, for a message: its own lines, as plain text."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from placer.system.printable import make_printable

_LAST: Final = 9
"""The last lines that are shown, besides the first one."""
_WIDTH: Final = 400
"""Characters of a line that are shown."""
_READ: Final = 1 << 16
"""Bytes at the end of a file that are read."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def lines_of(said: str | bytes) -> list[str]:
    """Return the first line of a text and the last nine, without control characters.

    The first line often has the cause, and the last ones what came of it.

    >>> lines_of("a\\n\\n\\x1b[31mb\\x1b[0m\\n")
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
    """Return a message with what a tool has said: after a colon, or indented below it.

    >>> quoting("sbatch failed", "Invalid account")
    'sbatch failed: Invalid account'
    >>> print(quoting("sbatch failed", "Invalid account\\nInvalid partition"))
    sbatch failed:
        Invalid account
        Invalid partition
    """
    lines = lines_of(said)
    if len(lines) < 2:
        return ": ".join([message, *lines])
    return "\n    ".join([f"{message}:", *lines])


def in_one_line(said: str | bytes) -> str:
    """Return what a tool has said on one line, as for the end of a node."""
    return " ".join(lines_of(said))


def end_of_file(path: Path) -> str:
    """Return the last bytes of a file that a tool writes; an empty text if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _READ))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
