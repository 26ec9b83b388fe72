"""The command `placer launch`."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import ExitStack, nullcontext, redirect_stdout
from pathlib import Path

import click

from placer.command.console import echo
from placer.command.options import build_argument, debug_option, run_options


@click.command("launch", short_help="Run all nodes of a build on this machine.")
@build_argument
@run_options
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the result as one JSON object on standard output; everything else goes "
    "to standard error.",
)
@click.option(
    "--logs",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the logs of nodes. By default a folder in the user's cache, "
    "removed after a successful run; the logs of the last 20 failed runs are kept.",
)
@click.option(
    "--in-process",
    is_flag=True,
    help="Run the nodes as threads of this process, with the same programs and without "
    "the live table.",
)
@debug_option
def launch_command(
    build: Path,
    steps: int | None,
    history: Path | None,
    save_params: Path | None,
    init_params: Path | None,
    base_port: int | None,
    join_timeout: float,
    deadline: float,
    carrier: str,
    emulate: bool,
    debug_nans: bool,
    as_json: bool,
    logs: Path | None,
    in_process: bool,
) -> None:
    """Run all nodes of BUILD on this machine until the run ends.

    Each node is a process. If one fails, all are ended, and the last line says the root
    cause. Ctrl-C ends all nodes. With --save-params, the first Ctrl-C stops all nodes
    after the same step and saves the parameters; a second one ends them at once.
    """
    from placer.build.plan import read_plan
    from placer.errors import RunWarning
    from placer.launcher.local import launch
    from placer.launcher.logs import new_log_folder
    from placer.report.outcome import (
        crowding_note,
        emulation_note,
        result_json,
        result_lines,
    )
    from placer.report.progress import show_progress

    plan = read_plan(build)
    stream = sys.stderr if as_json else sys.stdout
    with ExitStack() as entered:
        own = None
        if not in_process:
            if logs is None:
                own = entered.enter_context(new_log_folder(plan.name))
                logs = own.folder
            suffix = "" if own is None else " (removed after a successful run)"
            echo(f"{plan.name}: logs in {logs}{suffix}", file=stream)
        if emulate or plan.emulate:
            echo(f"{plan.name}: {emulation_note(plan)}", file=stream)
        if not in_process and (note := crowding_note(plan, _cores())):
            echo(f"{plan.name}: {note}", file=stream)
        nodes = [node.name for node in plan.nodes]
        # Threads report no events, so there is nothing to show.
        view = (
            nullcontext()
            if in_process
            else show_progress(plan.name, nodes, steps, stream)
        )
        # With --json, prints of the model's own modules must not mix with the result.
        prints = (
            redirect_stdout(sys.stderr) if in_process and as_json else nullcontext()
        )
        with view as watch, prints, warnings.catch_warnings():
            warnings.simplefilter("ignore", RunWarning)  # printed below
            result = launch(
                build,
                steps=steps,
                history=history,
                save_params=save_params,
                init_params=init_params,
                in_process=in_process,
                base_port=base_port,
                join_timeout=join_timeout,
                deadline=deadline,
                carrier=carrier,
                emulate=emulate,
                debug_nans=debug_nans,
                logs=logs,
                watch=watch,
            )
        if own is not None:
            own.failed = bool(result.warnings)
    for line in result_lines(result):
        echo(line, file=stream)
    for text in result.warnings:
        echo(f"warning: {text}", err=True)
    if as_json:
        echo(result_json(result))


def _cores() -> int:
    """Return the number of cores that this process and its children may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
