"""The command `placer key`."""

from __future__ import annotations

from pathlib import Path

import click

from placer.command.console import echo


@click.group("key", short_help="Create the key for runs on several machines.")
def key_command() -> None:
    """Create the key that the nodes of a run need to connect between machines.

    All nodes of a run use the same key. Anyone with the key can join the run as a node.
    """


@key_command.command("new", short_help="Write a new key to a file.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
def new_command(file: Path) -> None:
    """Write a new key to FILE, readable only by its owner.

    Copy FILE to the machines of the other nodes, and start each node with --key FILE.
    """
    from placer.channel.keys import new_key, write_key

    write_key(file, new_key())
    echo(f"wrote a key to {file}")
