"""Prints all output of the command line, and replaces control characters in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

import click

from placer.system.printable import make_printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def echo(
    text: str, *, file: TextIO | None = None, err: bool = False, nl: bool = True
) -> None:
    """Print a text with its control characters replaced, by default on standard output."""
    click.echo(make_printable(text), file=file, err=err, nl=nl)


def echo_views(
    views: Iterable[RenderableType], screen: Console, *, comment: str = ""
) -> None:
    """Print tables and texts. Without a terminal, print plain lines that begin with
    `comment`.
    """
    if screen.is_terminal:
        for view in views:
            screen.print(view)
        return
    with screen.capture() as text:
        for view in views:
            screen.print(view, soft_wrap=True)
    for line in text.get().splitlines():
        echo(f"{comment}{line}".rstrip())
