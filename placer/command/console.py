"""Prints all output of the command line, which may contain texts from files."""

from __future__ import annotations

from typing import TextIO

import click

from placer.printable import make_printable


def echo(
    text: str, *, file: TextIO | None = None, err: bool = False, nl: bool = True
) -> None:
    """Print text, by default on standard output, with control characters replaced."""
    click.echo(make_printable(text), file=file, err=err, nl=nl)
