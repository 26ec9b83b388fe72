"""Runs all nodes of a build on this machine, as processes or as threads."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from placer.build.plan import Plan, read_plan, read_sources
from placer.errors import PlacerError, RunError, RunWarning
from placer.launcher.logs import LogFolder, log_folder
from placer.launcher.node_command import node_command, node_environment
from placer.launcher.node_process import NodeProcess, start_node
from placer.launcher.ports import free_endpoints
from placer.launcher.signals import catch_signals
from placer.launcher.supervise import Watch, supervise
from placer.reentry import refuse_at_import, refuse_in_node
from placer.runtime.run.events import show_output
from placer.runtime.run.interruption import Interruption
from placer.runtime.run.options import OPTIONS, Options, takes_options
from placer.runtime.run.prediction_request import PredictionRequest
from placer.runtime.run.result import Outcome, Result

AnyPath = str | Path


@takes_options
def launch(
    build: AnyPath,
    *,
    in_process: bool = False,
    logs: AnyPath | None = None,
    watch: Watch | None = None,
    **options: Any,
) -> Result:
    """Run all nodes of a build on this machine until the run ends.

    In the main thread of a program, SIGINT, SIGTERM and SIGHUP end all processes. With
    `save_params`, the first of these signals stops all nodes after the same step and
    saves the parameters; a second one ends the processes at once.

    Args:
        build: the build folder.
        in_process: run the nodes as threads of this process instead of as processes.
        logs: the folder for the log of each node, such as worker-0.log. By default a
            folder in the user's cache, removed after a successful run.
        watch: a function that is called with each event of the nodes' processes. By
            default the lines that nodes print, with a prefix such as `worker:0| `, and
            their warnings are printed on standard error.
        options: the fields of `placer.Options`, such as `steps=100`, by default as
            there. `placer launch --help` explains them.

    Returns:
        The `Result` of the run: steps, metrics, evaluation, speed, bytes sent. Its
        `warnings` are the failures after the run had its result and all of its files;
        each is also a RunWarning.

    Raises:
        PlacerError: the options are wrong or cannot be combined.
        BuildError: the build was edited.
        RunError: a node failed. The text says the root cause; all processes have ended.
        KeyboardInterrupt: SIGINT was received.
        SystemExit: SIGTERM or SIGHUP was received.

    Example:
        placer.compile("digits.yaml", "build")
        result = placer.launch("build", steps=100)
        print(result.eval["accuracy"])
    """
    folder, chosen = Path(build), Options(**options)
    plan = check_launch(folder, chosen)
    if in_process:
        for name, value in (("logs", logs), ("watch", watch)):
            if value is not None:
                raise threads_error(name)
        return _launch_threads(folder, chosen)
    with log_folder(logs, plan.name) as run_logs:
        result = launch_processes(folder, plan, chosen, run_logs, watch or show_output)
    for text in result.warnings:
        warnings.warn(text, RunWarning, stacklevel=2)
    return result


def check_launch(build: Path, options: Options) -> Plan:
    """Return the plan of a build; PlacerError if it must not be launched like this."""
    refuse_in_node("placer.launch")
    plan = read_plan(build)
    spec = build / read_sources(build).spec
    refuse_at_import("placer.launch", spec.parent, plan.modules)
    check_output_files(build, options)
    return plan


def launch_processes(
    build: Path, plan: Plan, options: Options, logs: LogFolder, watch: Watch
) -> Result:
    """Run the nodes of a build as processes, after `check_launch`; see `launch`."""
    result = run_processes(build, plan, options, logs, watch)
    assert isinstance(result, Result)
    return result


def run_processes(
    build: Path,
    plan: Plan,
    options: Options,
    logs: LogFolder,
    watch: Watch,
    prediction: PredictionRequest | None = None,
) -> Outcome:
    """Run the nodes of a build as processes, to train, or to predict some rows."""
    nodes = [node.name for node in plan.nodes]
    if options.base_port is None:
        endpoints = free_endpoints(nodes)
    else:
        from placer.runtime.run.process import default_endpoints

        endpoints = default_endpoints(plan, options.base_port)
    command = partial(
        node_command,
        build,
        endpoints=endpoints,
        options=options,
        prediction=prediction,
    )
    result = launch_nodes(
        nodes,
        command,
        logs.folder,
        node_environment(job=uuid.uuid4().hex),
        watch,
        params_file=options.save_params,
    )
    logs.failed = bool(result.warnings)
    return result


def _launch_threads(build: Path, options: Options) -> Result:
    """Run the nodes of a build as threads; see `launch`.

    With `save_params`, a signal stops them after a step, and they save.
    """
    check_thread_options(options)
    from placer.runtime.run.threads import run_in_threads

    if options.save_params is None:
        result = run_in_threads(build, options)
        assert isinstance(result, Result)
        return result
    interruption = Interruption(options.save_params)
    with catch_signals() as signals:
        try:
            result = run_in_threads(
                build, options, interrupts=lambda: signals.save_timeouts
            )
        except KeyboardInterrupt as interrupt:
            signals.raise_first(str(interrupt))
            raise
        except PlacerError as error:
            signals.raise_first(interruption.outcome(None, failure=str(error)))
            raise
        assert isinstance(result, Result)
        signals.raise_first(interruption.outcome(result.steps))
        return result


def launch_nodes(
    nodes: Sequence[str],
    command: Callable[[str], Sequence[str]],
    logs: Path,
    env: Mapping[str, str],
    watch: Watch,
    *,
    params_file: Path | None = None,
) -> Outcome:
    """Start a process for each node and watch the processes until all have ended.

    The first node is the control node. `command(node)` returns the command line of a
    node; `--report-fd N` is appended, and the node writes the events of
    `placer.runtime.run.events` to that descriptor. `params_file` is the file to which
    the run saves its parameters. Raises the same errors as `launch`.
    """
    if not hasattr(os, "pidfd_open"):
        raise RunError(
            "nodes can run as processes on Linux only", hint="use --in-process"
        )
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlacerError(f"cannot create the folder for logs: {error}") from error
    with catch_signals() as signals, ExitStack() as exits:
        children: list[NodeProcess] = []
        for node in nodes:
            control = not children
            child = start_node(
                node, command(node), log_path(logs, node), env, takes_orders=control
            )
            children.append(child)
            exits.callback(child.close)
        return supervise(children, watch, signals, params_file=params_file)


def log_path(logs: Path, node: str) -> Path:
    """Return the log file of a node, such as `worker-0.log`."""
    return logs / f"{node.replace(':', '-')}.log"


def check_output_files(build: Path, options: Options) -> None:
    """Raise PlacerError if a file that the run writes cannot be written, is inside the
    build, or is named by two options."""
    targets: set[Path] = set()
    for option in OPTIONS:
        path = getattr(options, option.name)
        if option.file != "written" or path is None:
            continue
        why = None
        try:
            is_special = path.exists() and not path.is_file()  # a device, a pipe
        except OSError as error:  # for example, the name is too long
            raise PlacerError(f"cannot write '{path}': {error.strerror}") from error
        if not path.parent.is_dir():
            why = f"the folder '{path.parent}' does not exist"
        elif path.is_dir():
            why = "it is a folder"
        elif path.resolve().is_relative_to(build.resolve()):
            why = "it is inside the build folder"
        elif is_special and option.name == "save_params":
            why = "it is not a regular file"
        elif path.resolve() in targets and not is_special:
            why = "the run writes another file to the same path"
        if why is not None:
            raise PlacerError(f"cannot write '{path}': {why}")
        targets.add(path.resolve())


def check_thread_options(options: Options) -> None:
    """Raise PlacerError for an option that nodes in threads cannot use."""
    for option in OPTIONS:
        if not option.for_threads and getattr(options, option.name) != option.default:
            raise threads_error(option.name)


def threads_error(option: str) -> PlacerError:
    return PlacerError(
        f"'{option}' cannot be used with in-process nodes, which are threads"
    )
