"""Where reports are written: a terminal, with colours, or anything else, without."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from placer.printable import legible

_WIDE = 10_000


def is_terminal(stream: TextIO) -> bool:
    """Whether a person watches the stream on a terminal that understands control
    codes."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class _Legible(Console):
    """Steers the terminal itself, and no text that it shows does."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            shown = legible(text) if control is None else text
            yield Segment(shown, style, control)


def console(stream: TextIO) -> Console:
    """A console on the stream; off a terminal it writes plain, unbroken lines."""
    if is_terminal(stream):
        return _Legible(file=stream, highlight=False)
    return _Legible(
        file=stream,
        width=_WIDE,
        force_terminal=False,
        color_system=None,
        highlight=False,
    )
