"""The command `placer checkpoints`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click

from placer.command.console import echo, echo_views
from placer.command.paths import ExistingPath


@click.command("checkpoints", short_help="List and verify the checkpoints of a folder.")
@click.argument(
    "folder",
    metavar="DIR",
    type=ExistingPath(file_okay=False),
)
@click.option(
    "--no-verify",
    "verify",
    flag_value=False,
    default=True,
    help="Do not read the files to check their checksums.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def checkpoints_command(folder: Path, verify: bool, as_json: bool) -> None:
    """List the checkpoints in DIR, or show all that the checkpoint DIR has, and verify
    their files.

    The list has the last checkpoint first, with the nodes that have stored parameters
    in it. The status is 1 if a checkpoint is damaged.
    """
    from placer.checkpoint.choice import is_checkpoint
    from placer.report.checkpoint_details import details_view
    from placer.report.checkpoints import checkpoint_facts, find_checkpoints, list_view
    from placer.report.console import console

    with console(sys.stderr).status("verifying") if verify else nullcontext():
        listed = list(find_checkpoints(folder, verify=verify))
    if as_json:
        import msgspec

        facts = {"checkpoints": [*map(checkpoint_facts, listed)]}
        echo(msgspec.json.format(msgspec.json.encode(facts)).decode())
    else:
        screen = console(sys.stdout)
        is_one = is_checkpoint(folder)
        echo_views(
            details_view(*listed) if is_one else list_view(listed, screen), screen
        )
    if any(each.problem is not None for each in listed):
        raise click.exceptions.Exit(1)
