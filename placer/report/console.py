"""Creates consoles for reports: in color on a terminal, plain text elsewhere."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from shutil import get_terminal_size
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table

from placer.system.printable import make_printable

_UNBROKEN_WIDTH = 10_000


def is_terminal(stream: TextIO) -> bool:
    """Return True if the stream is a terminal that understands control codes."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class _LegibleConsole(Console):
    """A console that replaces control characters in printed text."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            shown = make_printable(text) if control is None else text
            yield Segment(shown, style, control)


def grid(*names: str, numbers: Collection[str]) -> Table:
    """Return a table with these columns and no lines. Columns in `numbers` align
    right.
    """
    aligned = [Column(n, justify="right" if n in numbers else "left") for n in names]
    return Table(*aligned, box=None, pad_edge=False, header_style="dim")


def drawing_width(screen: Console) -> int:
    """Return the width for a drawing: that of the terminal. Without a terminal, the
    variable COLUMNS or 80.
    """
    return screen.width if screen.is_terminal else get_terminal_size().columns


def console(stream: TextIO) -> Console:
    """Return a console for the stream. Without a terminal it writes plain, long
    lines.
    """
    if is_terminal(stream):
        return _LegibleConsole(file=stream, highlight=False)
    return _LegibleConsole(
        file=stream,
        width=_UNBROKEN_WIDTH,
        force_terminal=False,
        color_system=None,
        highlight=False,
    )
