"""Prints all output of the command line, and replaces control characters in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

import click

from placer.system.printable import make_printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text


def echo(
    text: str, *, file: TextIO | None = None, err: bool = False, nl: bool = True
) -> None:
    """Print a text with its control characters replaced, by default on standard output."""
    click.echo(make_printable(text), file=file, err=err, nl=nl)


def echo_drawing(line: str) -> None:
    """Print a line of a drawing, in ASCII if standard output cannot show Unicode."""
    from placer.report.text_canvas import to_ascii

    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    echo(line if is_unicode else to_ascii(line))


def page(lines: Iterable[Text], screen: Console) -> None:
    """Show lines in the pager of the terminal: $PAGER, or `less`. `less` ends at once if
    all lines fit on the screen.
    """
    os.environ.setdefault("LESS", "FRX")

    def rendered() -> Iterator[str]:
        for line in lines:
            with screen.capture() as text:
                screen.print(line, soft_wrap=True)
            yield text.get()

    click.echo_via_pager(rendered())


def echo_views(views: Iterable[RenderableType], screen: Console) -> None:
    """Print tables and texts; without a terminal, as plain lines of any length."""
    if screen.is_terminal:
        for view in views:
            screen.print(view)
        return
    with screen.capture() as text:
        for view in views:
            screen.print(view, soft_wrap=True)
    for line in text.get().splitlines():
        echo(line.rstrip())
