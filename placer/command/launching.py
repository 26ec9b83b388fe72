"""`placer launch`"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from shutil import rmtree

import click

from placer.command.options import build_argument, debug_option, run_options
from placer.command.printing import say


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
    help="Where each node's output goes; by default a temporary folder that goes when "
    "all went well.",
)
@click.option(
    "--in-process",
    is_flag=True,
    help="The nodes are threads of one process, with the same programs.",
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
    as_json: bool,
    logs: Path | None,
    in_process: bool,
) -> None:
    """Run all nodes of BUILD on this machine until the run ends.

    Each node is a process of its own. A failure of one ends all, and the last line
    says what its cause was. Ctrl-C ends all.
    """
    from placer.launcher.local import launch, new_logs
    from placer.plan import read_plan
    from placer.report.outcome import emulated, result_json, result_lines
    from placer.report.progress import progress

    plan = read_plan(build)
    shown = sys.stderr if as_json else sys.stdout
    temporary = None
    if not in_process:
        if logs is None:
            logs = temporary = new_logs(plan.name)
        stay = "" if temporary is None else ", kept where a node fails"
        say(f"{plan.name}: logs in {logs}{stay}", file=shown)
    if emulate or plan.emulate:
        say(f"{plan.name}: {emulated(plan)}", file=shown)
    nodes = [node.name for node in plan.nodes]
    # Threads report to nobody.
    view = nullcontext() if in_process else progress(plan.name, nodes, steps, shown)
    # What a model's own modules print is not the result.
    apart = redirect_stdout(sys.stderr) if in_process and as_json else nullcontext()
    with _empty_goes(temporary), view as watch, apart:
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
            logs=logs,
            watch=watch,
        )
    if temporary is not None:
        rmtree(temporary, ignore_errors=True)
    for line in result_lines(result):
        say(line, file=shown)
    if as_json:
        say(result_json(result))


@contextmanager
def _empty_goes(folder: Path | None) -> Iterator[None]:
    """A temporary folder of logs does not stay where no node was started."""
    try:
        yield
    finally:
        if folder is not None:
            with suppress(OSError):
                folder.rmdir()
