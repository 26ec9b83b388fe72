"""Runs all nodes of a build on this machine, as processes or as threads."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from placer.build.plan import Plan, read_plan, read_sources
from placer.errors import PlacerError, RunError, RunWarning
from placer.launcher.logs import LogFolder, new_log_folder
from placer.launcher.node_command import node_command, node_environment
from placer.launcher.node_process import NodeProcess, start_node
from placer.launcher.output import show_output
from placer.launcher.ports import free_endpoints
from placer.launcher.signals import Signals, catch_signals
from placer.launcher.supervise import Outcome, Watch, supervise
from placer.reentry import refuse_at_import, refuse_in_node

if TYPE_CHECKING:
    from placer.runtime.run.process import Options, Result

AnyPath = str | Path

MAX_WAIT = 1e9
"""The largest timeout, in seconds: about thirty years, which every clock can count."""


def launch(
    build: AnyPath,
    *,
    steps: int | None = None,
    history: AnyPath | None = None,
    save_params: AnyPath | None = None,
    init_params: AnyPath | None = None,
    in_process: bool = False,
    base_port: int | None = None,
    join_timeout: float = 600.0,
    deadline: float = 600.0,
    carrier: str = "auto",
    emulate: bool = False,
    debug_nans: bool = False,
    logs: AnyPath | None = None,
    watch: Watch | None = None,
) -> Result:
    """Run all nodes of a build on this machine until the run ends.

    In the main thread of a program, SIGINT, SIGTERM and SIGHUP end all processes. With
    `save_params`, the first of these signals stops all nodes after the same step and
    saves the parameters; a second one ends the processes at once.

    Args:
        build: the build folder.
        steps: run exactly this many steps instead of the epochs of the spec.
        history: a file to write the metrics of each step to, as JSON lines.
        save_params: a file to write all parameters to at the end, as safetensors.
        init_params: a safetensors file with the parameters to start from.
        in_process: run the nodes as threads of this process instead of as processes.
        base_port: the port of the first node; the others use the ports after it. By
            default the nodes use free loopback ports.
        join_timeout: the longest that a node waits for the others to start, in seconds.
        deadline: the longest that a node waits for a message from a live peer, in
            seconds.
        carrier: the transport between nodes: "shared" (shared memory), "zeromq" (ZeroMQ
            over TCP) or "auto".
        emulate: use CPU devices in place of all accelerators.
        debug_nans: find the first op that produces NaN, by running op by op (slow).
        logs: the folder for the log of each node, such as worker-0.log. By default a
            folder in the user's cache, removed after a successful run.
        watch: a function that is called with each event of the nodes' processes. By
            default the lines that nodes print, with a prefix such as `worker:0| `, and
            their warnings are printed on standard error.

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
    refuse_in_node("placer.launch")
    folder = Path(build)
    plan = read_plan(folder)
    spec = folder / read_sources(folder).spec
    refuse_at_import("placer.launch", spec.parent, plan.modules)
    options = {
        "steps": steps,
        **check_output_files(folder, history=history, save_params=save_params),
        "init_params": Path(init_params) if init_params is not None else None,
        "join_timeout": join_timeout,
        "deadline": deadline,
        "carrier": carrier,
        "emulate": emulate,
        "debug_nans": debug_nans,
    }
    if steps is not None and steps < 1:
        raise PlacerError(f"'steps' must be at least 1, not {steps}")
    for name, seconds in (("join_timeout", join_timeout), ("deadline", deadline)):
        if not 0 < seconds <= MAX_WAIT:
            raise PlacerError(
                f"'{name}' must be above 0 and at most {MAX_WAIT:g} seconds, not {seconds}"
            )
    if in_process:
        _check_thread_options(
            base_port=base_port, carrier=carrier, logs=logs, watch=watch
        )
        from placer.runtime.run.process import Options, run_in_threads

        run_options = Options(**options)  # type: ignore[arg-type]
        if run_options.save_params is None:
            return run_in_threads(folder, run_options)
        with catch_signals() as signals:
            return _run_saving_threads(run_in_threads, folder, run_options, signals)
    save = Path(save_params) if save_params is not None else None
    nodes = [node.name for node in plan.nodes]
    endpoints = _endpoints(plan, base_port)
    job = uuid.uuid4().hex

    def command(node: str) -> list[str]:
        return node_command(folder, node, endpoints=endpoints, options=options)

    with (
        nullcontext(LogFolder(Path(logs)))
        if logs is not None
        else new_log_folder(plan.name) as log_folder
    ):
        outcome = launch_nodes(
            nodes,
            command,
            log_folder.folder,
            node_environment(job),
            watch or show_output,
            params_file=save,
        )
        log_folder.failed = bool(outcome.warnings)
    from placer.runtime.run.process import Result

    for text in outcome.warnings:
        warnings.warn(text, RunWarning, stacklevel=2)
    return Result(**msgspec.structs.asdict(outcome.result), warnings=outcome.warnings)


def _run_saving_threads(
    run_in_threads: Callable[..., Result],
    build: Path,
    options: Options,
    signals: Signals,
) -> Result:
    """Run the nodes as threads; a signal stops them after a step, and saves."""
    try:
        result = run_in_threads(
            build, options, interrupts=lambda: signals.save_timeouts
        )
    except KeyboardInterrupt as interrupt:
        signals.raise_first(str(interrupt))
        raise
    except PlacerError as error:
        signals.raise_first(f"nothing was saved: {error}")
        raise
    signals.raise_first(
        f"stopped after step {result.steps}; the parameters are in {options.save_params}"
    )
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
    `placer.launcher.node_events` to that descriptor. `params_file` is the file to which
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
        try:
            for node in nodes:
                control = not children
                child = start_node(
                    node, command(node), log_path(logs, node), env, takes_orders=control
                )
                children.append(child)
                exits.callback(child.close)
        except BaseException:
            for child in children:
                child.reap()
            raise
        return supervise(children, watch, signals, params_file=params_file)


def log_path(logs: Path, node: str) -> Path:
    """Return the log file of a node, such as `worker-0.log`."""
    return logs / f"{node.replace(':', '-')}.log"


def check_output_files(build: Path, **files: AnyPath | None) -> dict[str, Path | None]:
    """Return the paths of the files that the run will write, by option name.

    Raises PlacerError if a file cannot be written, is inside the build, or is named by
    two options.
    """
    paths = {name: None if f is None else Path(f) for name, f in files.items()}
    targets: set[Path] = set()
    for name, path in paths.items():
        if path is None:
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
        elif is_special and name == "save_params":
            why = "it is not a regular file"
        elif path.resolve() in targets and not is_special:
            why = "the run writes another file to the same path"
        if why is not None:
            raise PlacerError(f"cannot write '{path}': {why}")
        targets.add(path.resolve())
    return paths


def _endpoints(plan: Plan, base_port: int | None) -> dict[str, str]:
    if base_port is None:
        return free_endpoints([node.name for node in plan.nodes])
    last = base_port + len(plan.nodes) - 1
    if last > 65535:
        raise PlacerError(
            f"{len(plan.nodes)} nodes from base port {base_port} need port {last}",
            hint="the highest port is 65535",
        )
    from placer.runtime.run.process import default_endpoints

    return default_endpoints(plan, base_port)


def _check_thread_options(**options: Any) -> None:
    """Check that no option is used that nodes as threads do not have."""
    for name, value in options.items():
        if value not in (None, "auto"):
            raise PlacerError(
                f"'{name}' cannot be used with in-process nodes, which are threads"
            )
