"""The command `placer key`."""

from __future__ import annotations

from pathlib import Path

import click

from placer.command.console import echo


@click.group("key", short_help="Make the key of runs on several machines.")
def key_command() -> None:
    """Make the key that the nodes of a run need to connect between machines.

    Every node of a run has the same key, and who has it can be any node of the run.
    """


@key_command.command("new", short_help="Write a new key to a file.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
def new_command(file: Path) -> None:
    """Write a new key to FILE, which only its owner can read.

    Copy it to the machines of the other nodes, and start each with --key FILE.
    """
    from placer.channel.keys import new_key, write_key

    write_key(file, new_key())
    echo(f"wrote a key to {file}")
