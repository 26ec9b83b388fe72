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
    """Print a text with its control characters replaced, by default on standard output.
    Drawings are in ASCII there if its encoding is not Unicode."""
    printable = make_printable(text)
    encoding = (sys.stdout.encoding or "").lower()
    if file is None and not err and not encoding.startswith("utf"):
        from placer.report.text_canvas import to_ascii

        printable = to_ascii(printable)
    click.echo(printable, file=file, err=err, nl=nl)


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
