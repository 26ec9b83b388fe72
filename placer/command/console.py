"""Where the command line prints: names, paths and texts of others pass through here."""

from __future__ import annotations

from typing import TextIO

import click

from placer.printable import legible


def say(
    text: str, *, file: TextIO | None = None, err: bool = False, nl: bool = True
) -> None:
    """Print text, by default on standard output, without what steers a terminal."""
    click.echo(legible(text), file=file, err=err, nl=nl)
