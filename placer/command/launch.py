"""`placer launch`"""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import ExitStack, nullcontext, redirect_stdout
from pathlib import Path

import click

from placer.command.console import say
from placer.command.options import build_argument, debug_option, run_options


@click.command(
    "launch", short_help="Run all nodes of a build on this machine, and watch them."
)
@build_argument
@run_options
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="End with the result as one JSON object, alone on standard output.",
)
@click.option(
    "--logs",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where each node's output goes; by default a folder of the user's cache that "
    "is removed when all went well. It keeps those of the last 20 runs that failed.",
)
@click.option(
    "--in-process",
    is_flag=True,
    help="The nodes are threads of one process, with the same programs; there is no "
    "live table of them.",
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

    Each node is a process of its own. A failure of one ends all, and the last line
    says what its cause was. Ctrl-C ends all: with --save-params, the first lets all
    nodes stop after the same step and save.
    """
    from placer.build.plan import read_plan
    from placer.errors import RunWarning
    from placer.launcher.local import launch
    from placer.launcher.logs import own_logs
    from placer.report.outcome import crowded, emulated, result_json, result_lines
    from placer.report.progress import progress

    plan = read_plan(build)
    shown = sys.stderr if as_json else sys.stdout
    with ExitStack() as entered:
        own = None
        if not in_process:
            if logs is None:
                own = entered.enter_context(own_logs(plan.name))
                logs = own.folder
            stay = "" if own is None else ", kept where a node fails"
            say(f"{plan.name}: logs in {logs}{stay}", file=shown)
        if emulate or plan.emulate:
            say(f"{plan.name}: {emulated(plan)}", file=shown)
        if not in_process and (note := crowded(plan, _cores())):
            say(f"{plan.name}: {note}", file=shown)
        nodes = [node.name for node in plan.nodes]
        # Threads report to nobody.
        view = nullcontext() if in_process else progress(plan.name, nodes, steps, shown)
        # What a model's own modules print is not the result.
        apart = redirect_stdout(sys.stderr) if in_process and as_json else nullcontext()
        with view as watch, apart, warnings.catch_warnings():
            warnings.simplefilter("ignore", RunWarning)  # told below
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
        say(line, file=shown)
    for text in result.warnings:
        say(f"warning: {text}", err=True)
    if as_json:
        say(result_json(result))


def _cores() -> int:
    """The cores that this process, and those that it starts, may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
