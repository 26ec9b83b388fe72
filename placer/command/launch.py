"""The command `placer launch`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from placer.command.console import echo
from placer.command.option_groups import (
    GroupedCommand,
    command_without,
    grouped_option,
)
from placer.command.options import (
    Pairs,
    build_argument,
    data_option,
    launch_hosts_option,
    listed,
    on_option,
    run_options,
)
from placer.errors import PlacerError, install_extra
from placer.system.files.nearest_path import path_hint

if TYPE_CHECKING:
    from placer.launcher.engine_job import OnEngine
    from placer.launcher.remote import Hosts
    from placer.launcher.supervise import Watch
    from placer.plan.plan import Plan
    from placer.runtime.control.events import Event
    from placer.runtime.control.options import Options

Function = TypeVar("Function", bound=Callable[..., Any])

_json_option = grouped_option(
    "Output",
    "--json",
    "as_json",
    is_flag=True,
    help="Print the result as one JSON object on standard output, and everything else on "
    "standard error.",
)
_logs_option = grouped_option(
    "Output",
    "--logs",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the logs of the nodes. Default: a folder in the user's cache, removed "
    "after a successful run. The logs of the last 20 failed runs are kept.",
)
_tensorboard_option = grouped_option(
    "Output",
    "--tensorboard",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write metrics, learning rates and speed to a subfolder of DIR, for TensorBoard. Needs "
    f"{install_extra('tensorboard')}.",
)
_in_process_option = grouped_option(
    "Run",
    "--in-process",
    is_flag=True,
    help="Run the nodes as threads of this process, with the same programs but without the live "
    "table.",
)
_quiet_option = grouped_option(
    "Output",
    "--quiet",
    is_flag=True,
    help="Print only warnings, errors and the result.",
)


_elastic_option = grouped_option(
    "Checkpoints",
    "--elastic",
    **listed(Pairs("KIND=N", "worker=2,ps=1", "[1-9][0-9]{0,6}", int)),
    help="With --restarts: give up a node that has not come back within --join-timeout, and go "
    "on with fewer nodes, at least so many, such as worker=2,ps=1. Results then differ by "
    "rounding.",
)

_OF_RUNS = {
    "as_json": "--json",
    "elastic": "--elastic",
    "logs": "--logs",
    "quiet": "--quiet",
    "tensorboard": "--tensorboard",
}
"""Options of the launcher, which have no effect when nothing is run."""
_NOT_CONTINUED = (
    "checkpoint",
    "init_params",
    "out",
    "partial",
    "resume",
    "shrink",
    "skip_pass",
)
"""Options that the command to continue a run sets anew, or leaves out."""


def launch_options(command: Function) -> Function:
    """Add the options of `placer launch` that are arguments of `run_build`."""
    own = (
        _json_option,
        _logs_option,
        _tensorboard_option,
        _elastic_option,
        _in_process_option,
        _quiet_option,
    )
    for option in reversed(own):
        command = option(command)
    return run_options(command)


@click.command("launch", cls=GroupedCommand, short_help="Run all nodes of a build.")
@build_argument
@on_option
@grouped_option(
    "Engines",
    "--option",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the engine, such as partition=short. `--option help` lists all options. "
    "Can be repeated.",
)
@grouped_option(
    "Engines",
    "--write",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Only write the files of the job to DIR, to read them and to submit them by hand.",
)
@launch_hosts_option
@grouped_option(
    "Machines and connections",
    "--ssh",
    metavar="COMMAND",
    envvar="PLACER_SSH",
    help="With --hosts: the ssh command, such as 'ssh -F FILE'. Default: PLACER_SSH, or else ssh.",
)
@grouped_option(
    "Machines and connections",
    "--python",
    metavar="PATH",
    help="With --hosts: path of the Python interpreter on these machines, which must "
    "have placer. Default: the path of this interpreter.",
)
@data_option
@launch_options
def launch_command(
    build: Path,
    on: str | None,
    settings: tuple[str, ...],
    write: Path | None,
    hosts: Path | None,
    ssh: str | None,
    python: str | None,
    data: Path | None,
    **options: Any,
) -> None:
    """Run all nodes of BUILD until the run ends.

    Each node is a process on this machine, or on another machine with --hosts or --on. If
    a node fails, all nodes are stopped, and the last line names the root cause. Ctrl-C
    stops all nodes. With --checkpoint or --save-params, the first Ctrl-C stops all nodes
    after the same step and saves; a second Ctrl-C stops them at once.

    The command, the metrics and the end of the run are kept in a folder NAME-N in `runs`
    next to BUILD; see `placer runs`.
    """
    from placer.launcher.remote import Hosts

    source = click.get_current_context().get_parameter_source("ssh")
    from_environment = source is ParameterSource.ENVIRONMENT
    if on is not None:
        own_ssh = None if from_environment else ssh
        for given, flag in (
            (hosts, "--hosts"),
            (python, "--python"),
            (own_ssh, "--ssh"),
        ):
            if given is not None:
                raise PlacerError(f"{flag} cannot be used with --on")
        _run_on(build, on, settings, write, data, options)
        return
    if settings or write is not None:
        raise PlacerError("--option and --write need an engine: --on ENGINE")
    if hosts is None:
        if python is not None:
            raise PlacerError("--python is for other machines and needs --hosts FILE")
        if ssh is not None and not from_environment:
            raise PlacerError("--ssh is for other machines and needs --hosts FILE")
        if data is not None and not data.is_dir():
            raise PlacerError(
                f"the folder '{data}' of --data does not exist",
                hint=path_hint(data, Path.is_dir),
            )
        _check_and_run(build, **options)
        return
    if options["in_process"]:
        raise PlacerError("--in-process cannot be used with --hosts")
    machines = Hosts(hosts, ssh or "ssh", python, data)
    _check_and_run(build, machines=machines, **options)


def _run_on(
    build: Path,
    engine: str,
    settings: tuple[str, ...],
    write: Path | None,
    data: Path | None,
    options: dict[str, Any],
) -> None:
    """Run a build as a job of an engine, or write the files of the job."""
    from placer.launcher.checks import check_launch
    from placer.launcher.engine_job import OnEngine, request_job, write_job
    from placer.launcher.engines.find import find_engine
    from placer.launcher.engines.options import list_options, split_options
    from placer.runtime.control.options import OPTIONS, Options

    if options["in_process"]:
        raise PlacerError("--in-process cannot be used with --on")
    if "help" in settings:
        for line in list_options(find_engine(engine).OPTIONS):
            echo(line)
        return
    on = OnEngine(engine, split_options(settings), data)
    if write is None:
        _check_and_run(build, machines=on, **options)
        return
    for name, flag in _OF_RUNS.items():
        if options[name]:
            raise PlacerError(f"{flag} has no effect with --write: nothing is run")
    chosen = Options(**{option.name: options[option.name] for option in OPTIONS})
    plan, chosen = check_launch(build, chosen, machines=on)
    files = write_job(write, build, request_job(build, plan, chosen, on), on)
    for path in files:
        echo(str(path))
    for path, file in files.items():
        if file.submits:
            echo(
                f"{plan.name}: to submit the job, see the first lines of {path}",
                err=True,
            )


def _check_and_run(
    build: Path, machines: Hosts | OnEngine | None = None, **options: Any
) -> None:
    from placer.launcher.checks import check_launch, claimed_folder
    from placer.launcher.data_check import check_build_data
    from placer.launcher.run_folder import recorded_launch
    from placer.plan.plan import read_sources
    from placer.runtime.control.checkpoint_settings import checkpoint_folder
    from placer.runtime.control.options import OPTIONS, Options

    of_run = {option.name: options.pop(option.name) for option in OPTIONS}
    plan, chosen = check_launch(build, Options(**of_run), machines=machines)
    is_here = machines is None
    with ExitStack() as exits:
        if is_here:
            check_build_data(plan, build)
            spec = build / read_sources(build).spec
            folder = checkpoint_folder(plan, spec, chosen)
            exits.enter_context(
                ends_if_busy(chosen, options["as_json"], options["quiet"])
            )
            exits.enter_context(claimed_folder(plan, folder))
        command = command_without(())
        record = exits.enter_context(
            recorded_launch(build, plan, chosen, command=command, is_here=is_here)
        )
        run_build(
            build,
            plan,
            chosen,
            machines=machines,
            note=record.note,
            folder=lambda: record.folder,
            **options,
        )


@contextmanager
def ends_if_busy(options: Options, as_json: bool, quiet: bool) -> Iterator[None]:
    """Let a command with `--until now` end normally if another run uses its folder of
    checkpoints."""
    from placer.checkpoint.folder import InUseError
    from placer.plan.settings.data.stream import NOW
    from placer.report.outcome import busy_json

    try:
        yield
    except InUseError as error:
        if options.until != NOW:
            raise
        if as_json:
            echo(busy_json(error.folder))
        if not quiet:
            echo(f"{error.message}; nothing to do", err=as_json)


def run_build(
    build: Path,
    plan: Plan,
    options: Options,
    *,
    as_json: bool,
    logs: Path | None,
    in_process: bool,
    quiet: bool,
    tensorboard: Path | None,
    elastic: dict[str, int] | None,
    machines: Hosts | OnEngine | None = None,
    note: Watch,
    folder: Callable[[], Path | None],
) -> None:
    """Run a build, print the progress and the result, and call `note` with each event.

    `plan` and `options` come from `check_launch`; `machines` is None for this machine.
    `folder` returns the folder of the run, which may not exist before the first step.
    """
    from placer.launcher.elastic_checks import check_elastic
    from placer.launcher.engine_job import OnEngine
    from placer.launcher.launch import callback_queue, launch_checked, launch_processes
    from placer.launcher.logs import log_folder
    from placer.plan.settings.data.stream import NOW
    from placer.report.next_commands import next_lines
    from placer.report.outcome import (
        best_lines,
        crowding_note,
        emulation_note,
        result_json,
        result_lines,
    )
    from placer.report.progress.show import show_progress, show_warnings
    from placer.report.progress.view import RunView
    from placer.report.shown_path import home_path
    from placer.runtime.control.events import show_output
    from placer.runtime.signals.interruption import interruption_of
    from placer.system.cores import usable_cores

    chosen = check_elastic(
        build,
        plan,
        options,
        elastic,
        machines=machines,
        in_process=in_process,
        folder=folder,
    )
    stream = sys.stderr if as_json else sys.stdout
    with ExitStack() as exits:
        notes = []
        if not in_process:
            run_logs = exits.enter_context(log_folder(logs, plan.name, build))
            # An engine's job prints the folder of its logs itself. A failure names the
            # logs in a new folder.
            if not (isinstance(machines, OnEngine) or run_logs.is_new):
                notes.append(f"logs in {home_path(run_logs.folder)}")
        if options.emulate or plan.settings.emulate:
            notes.append(emulation_note(plan))
        is_here = not in_process and machines is None
        if is_here and (crowding := crowding_note(plan, usable_cores())):
            notes.append(crowding)
        for text in () if quiet else notes:
            echo(f"{plan.name}: {text}", file=stream)
        if in_process:
            # Prints of the model's modules must not mix with the result.
            if quiet:
                nowhere = exits.enter_context(open(os.devnull, "w"))
                exits.enter_context(redirect_stdout(nowhere))
            elif as_json:
                exits.enter_context(redirect_stdout(sys.stderr))
            result = launch_checked(
                build,
                plan,
                options,
                in_process=True,
                logs=logs,
                return_params=False,
                tensorboard=tensorboard,
                note=note,
                folder=folder,
                show=show_warnings if quiet else show_output,
            )
        else:
            calls = exits.enter_context(
                callback_queue(plan, build, options, tensorboard=tensorboard)
            )
            watch: Watch = show_warnings
            if not quiet:
                run = RunView.of_plan(plan, folder=folder)
                watch = exits.enter_context(show_progress(run, stream))

            def note_and_watch(event: Event) -> None:
                note(event)
                watch(event)

            result = launch_processes(
                build,
                plan,
                options,
                run_logs,
                note_and_watch,
                replace(
                    interruption_of(plan, build, options),
                    command=command_without(_NOT_CONTINUED),
                ),
                calls,
                machines,
                chosen,
            )
            if chosen is not None:  # the run may have ended with another build
                build, plan = chosen.build, chosen.plan
            # The result has more warnings than its event, if a node failed after it.
            note(result)
    # The JSON object is the result. From cron, it is normal that no file is new.
    is_normal = options.until == NOW and not result.has_trained
    if not (quiet and (as_json or is_normal)):
        for line in result_lines(result):
            echo(line, file=stream)
        if machines is None and options.trace is not None:
            from placer.report.run_about import load_text
            from placer.report.step.lines import step_lines

            try:
                load = load_text(result.other_load, usable_cores())
                for line in step_lines(options.trace, build, plan, load):
                    echo(line, file=stream)
            except PlacerError as error:  # the training itself succeeded
                echo(f"warning: {error}", err=True)
        if machines is None and result.best is not None:
            for line in best_lines(
                Path(result.best), is_before_shrinking=result.is_before_shrinking
            ):
                echo(line, file=stream)
    for text in result.warnings:
        echo(f"warning: {text}", err=True)
    if not (quiet or is_normal):
        is_here = machines is None
        for line in next_lines(plan, build, options, result, folder(), is_here=is_here):
            echo(line, file=stream)
    if as_json:
        echo(result_json(result))
