"""The command `placer runs`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from placer.command.console import echo, echo_views


@click.command("runs", short_help="List training runs and compare them.")
@click.argument(
    "folder", metavar="[DIR]", default="runs", type=click.Path(path_type=Path)
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as one JSON object."
)
def runs_command(folder: Path, as_json: bool) -> None:
    """List the training runs in DIR, oldest first.

    DIR is a folder of runs or the folder of one run; the default is `runs`. For each run,
    the list shows the metrics of an evaluation and of the last epoch, the steps, the
    speed, the settings that differ between the runs of a model, and how the run ended.

    The list shows the best evaluation, by the metric of train.checkpoint.best or
    train.early_stopping, or by the loss. If a run does not compare its evaluations, the
    list shows the last evaluation.

    A star marks the best run. A single run is shown with its settings and warnings.

    If the files of a run are damaged, the other runs are listed and the exit status is 1.
    """
    from placer.report.console import console
    from placer.report.run_files import find_readable_runs
    from placer.report.runs import runs_facts, runs_view

    runs, errors = find_readable_runs(folder)
    if as_json:
        import msgspec

        echo(msgspec.json.format(msgspec.json.encode(runs_facts(runs))).decode())
    else:
        screen = console(sys.stdout)
        echo_views(runs_view(runs, screen), screen)
    for error in errors:
        echo(str(error), err=True)
    if errors:
        click.get_current_context().exit(1)
