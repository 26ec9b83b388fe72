"""The command `placer checkpoints`."""

from __future__ import annotations

from pathlib import Path

import click

from placer.command.console import echo


@click.command("checkpoints", short_help="List and verify the checkpoints of a folder.")
@click.argument(
    "folder",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--no-verify",
    "verify",
    flag_value=False,
    default=True,
    help="Do not read the files to check their checksums.",
)
def checkpoints_command(folder: Path, verify: bool) -> None:
    """List the checkpoints in DIR, or the checkpoint DIR, and verify their files.

    The status is 1 if one of them is damaged.
    """
    from placer.report.checkpoints import checkpoint_lines, find_checkpoints

    is_damaged = False
    for listed in find_checkpoints(folder, verify=verify):
        is_damaged = is_damaged or listed.problem is not None
        for line in checkpoint_lines(listed):
            echo(line)
    if is_damaged:
        raise click.exceptions.Exit(1)
