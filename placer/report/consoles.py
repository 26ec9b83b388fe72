"""Where reports are written: a terminal, with colours, or anything else, without."""

from __future__ import annotations

import os
from typing import TextIO

from rich.console import Console

_WIDE = 10_000


def is_terminal(stream: TextIO) -> bool:
    """Whether a person watches the stream on a terminal that understands control
    codes."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def console(stream: TextIO) -> Console:
    """A console on the stream; off a terminal it writes plain, unbroken lines."""
    if is_terminal(stream):
        return Console(file=stream, highlight=False)
    return Console(
        file=stream,
        width=_WIDE,
        force_terminal=False,
        color_system=None,
        highlight=False,
    )
