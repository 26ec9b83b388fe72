"""The command `placer checkpoints`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

import click

from placer.command.console import echo, echo_views
from placer.command.paths import SavedPath


@click.command("checkpoints", short_help="List and verify the checkpoints of a folder.")
@click.argument(
    "folder",
    metavar="DIR",
    type=SavedPath(file_okay=False),
)
@click.option(
    "--no-verify",
    "verify",
    flag_value=False,
    default=True,
    help="Skip the verification of checksums, which reads all files.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object."
)
def checkpoints_command(folder: Path, verify: bool, as_json: bool) -> None:
    """List the checkpoints of a folder, or describe one checkpoint, and verify the files.

    DIR is a folder of checkpoints or a single checkpoint. The list starts with the newest
    checkpoint, and names the nodes that stored parameters in each one. Below it are the
    attempts of runs with --restarts. The exit status is 1 if a checkpoint is damaged.
    """
    from placer.checkpoint.attempts import read_attempts
    from placer.checkpoint.choice import is_checkpoint
    from placer.report.checkpoint_details import details_view
    from placer.report.checkpoints import (
        attempts_view,
        checkpoint_facts,
        find_checkpoints,
        list_view,
    )
    from placer.report.console import console

    with console(sys.stderr).status("verifying") if verify else nullcontext():
        listed = list(find_checkpoints(folder, verify=verify))
    is_one = is_checkpoint(folder)
    attempts = [] if is_one else read_attempts(folder)
    if as_json:
        import msgspec

        facts = {
            "checkpoints": [*map(checkpoint_facts, listed)],
            "attempts": attempts,
        }
        echo(msgspec.json.format(msgspec.json.encode(facts)).decode())
    else:
        screen = console(sys.stdout)
        views = details_view(*listed) if is_one else list_view(listed, screen)
        echo_views(chain(views, attempts_view(attempts, screen)), screen)
    if any(each.problem is not None for each in listed):
        raise click.exceptions.Exit(1)
