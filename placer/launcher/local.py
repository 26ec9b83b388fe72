"""All nodes of a build on this machine: a process each, or threads of this one."""

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
from placer.launcher.logs import Logs, own_logs
from placer.launcher.node_command import environment, node_command
from placer.launcher.node_process import Child, start
from placer.launcher.output import show_output
from placer.launcher.ports import free_endpoints
from placer.launcher.signals import Signals, caught
from placer.launcher.supervise import Outcome, Watch, supervise
from placer.reentry import refuse_at_import, refuse_in_node

if TYPE_CHECKING:
    from placer.runtime.run.process import Options, Result

Paths = str | Path

LONGEST = 1e9
"""Seconds that a wait may be asked to last: some thirty years."""


def launch(
    build: Paths,
    *,
    steps: int | None = None,
    history: Paths | None = None,
    save_params: Paths | None = None,
    init_params: Paths | None = None,
    in_process: bool = False,
    base_port: int | None = None,
    join_timeout: float = 600.0,
    deadline: float = 600.0,
    carrier: str = "auto",
    emulate: bool = False,
    debug_nans: bool = False,
    logs: Paths | None = None,
    watch: Watch | None = None,
) -> Result:
    """Run all nodes of a build on this machine until the run ends.

    Each node is a process of its own, on loopback ports that are free, or on
    `base_port` and those after it; its output goes to `logs`/worker-0.log, by default
    in a folder of the user's cache that is removed when all went well. With `in_process` the nodes are
    threads of this process. `steps` runs exactly that many, whatever the spec's epochs
    say; `history` gets a JSON line per step, `save_params` the whole parameters at the
    end and `init_params` gives those at the beginning, both as safetensors.
    `join_timeout` is how long, in seconds, nodes wait for each other at the start,
    `deadline` how long one waits for a message of another that is alive. What nodes send
    goes through memory that they share, or with `carrier="zeromq"` through sockets.
    With `emulate` every device that is no CPU is a CPU device of its own. With
    `debug_nans` ops run one by one, slowly, and the first that gives NaN is named.
    `watch` is shown each event of the nodes' processes. Without it, what their Python
    code prints is printed on standard error, `worker:0| ` before each line, and so are
    warnings.

    Raises PlacerError for options that do not go together, BuildError for an edited
    build, RunError with the root cause when a node fails; all processes have ended by
    then. What fails once the run has its result, and all of its files, is a RunWarning
    and in `Result.warnings`. SIGINT, SIGTERM and SIGHUP end the processes too, as
    KeyboardInterrupt and SystemExit, if this is the program's main thread: with
    `save_params` the first of them lets all nodes stop after the same step and save.
    """
    refuse_in_node("placer.launch")
    folder = Path(build)
    plan = read_plan(folder)
    spec = folder / read_sources(folder).spec
    refuse_at_import("placer.launch", spec.parent, plan.modules)
    options = {
        "steps": steps,
        **written_files(folder, history=history, save_params=save_params),
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
        if not 0 < seconds <= LONGEST:
            raise PlacerError(
                f"'{name}' must be above 0 and at most {LONGEST:g} seconds, not {seconds}"
            )
    if in_process:
        _check_threads(base_port=base_port, carrier=carrier, logs=logs, watch=watch)
        from placer.runtime.run.process import Options, run_in_threads

        given = Options(**options)  # type: ignore[arg-type]
        if given.save_params is None:
            return run_in_threads(folder, given)
        with caught() as signals:
            return _saved_threads(run_in_threads, folder, given, signals)
    save = Path(save_params) if save_params is not None else None
    nodes = [node.name for node in plan.nodes]
    endpoints = _endpoints(plan, base_port)
    job = uuid.uuid4().hex

    def command(node: str) -> list[str]:
        return node_command(folder, node, endpoints=endpoints, options=options)

    with (
        nullcontext(Logs(Path(logs)))
        if logs is not None
        else own_logs(plan.name) as where
    ):
        outcome = launch_nodes(
            nodes,
            command,
            where.folder,
            environment(job),
            watch or show_output,
            saves=save,
        )
        where.failed = bool(outcome.warnings)
    from placer.runtime.run.process import Result

    for text in outcome.warnings:
        warnings.warn(text, RunWarning, stacklevel=2)
    return Result(**msgspec.structs.asdict(outcome.result), warnings=outcome.warnings)


def _saved_threads(
    run_in_threads: Callable[..., Result],
    build: Path,
    options: Options,
    signals: Signals,
) -> Result:
    """Run the nodes as threads; a signal stops them after a step, and they save."""
    try:
        result = run_in_threads(build, options, interrupts=lambda: signals.graces)
    except KeyboardInterrupt as interrupt:
        signals.heed(str(interrupt))
        raise
    except PlacerError as error:
        signals.heed(f"nothing was saved: {error}")
        raise
    signals.heed(
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
    saves: Path | None = None,
) -> Outcome:
    """Start a process for each node, the control node first, and watch them until all
    have ended. `saves` is the file that the run saves its parameters to.

    `command(node)` is the command line of a node; it speaks `placer.launcher.node_events`
    on the descriptor that its appended `--report-fd` names. Raises as `launch`.
    """
    if not hasattr(os, "pidfd_open"):
        raise RunError(
            "processes can be watched over on Linux only", hint="use --in-process"
        )
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlacerError(f"cannot make the logs' folder: {error}") from error
    with caught() as signals, ExitStack() as opened:
        children: list[Child] = []
        try:
            for node in nodes:
                control = not children
                child = start(
                    node, command(node), log_path(logs, node), env, orders=control
                )
                children.append(child)
                opened.callback(child.close)
        except BaseException:
            for child in children:
                child.reap()
            raise
        return supervise(children, watch, signals, saves=saves)


def log_path(logs: Path, node: str) -> Path:
    """The file that a node's output goes to: `worker-0.log`."""
    return logs / f"{node.replace(':', '-')}.log"


def written_files(build: Path, **files: Paths | None) -> dict[str, Path | None]:
    """The paths of files that the run will write; PlacerError if they cannot be, or
    would take the place of each other or of the build."""
    paths = {name: None if f is None else Path(f) for name, f in files.items()}
    taken: set[Path] = set()
    for name, path in paths.items():
        if path is None:
            continue
        why = None
        try:
            other = path.exists() and not path.is_file()  # a device, a pipe
        except OSError as error:  # for one, its name is too long
            raise PlacerError(f"cannot write '{path}': {error.strerror}") from error
        if not path.parent.is_dir():
            why = f"there is no folder '{path.parent}'"
        elif path.is_dir():
            why = "it is a folder"
        elif path.resolve().is_relative_to(build.resolve()):
            why = "a build holds nothing else"
        elif other and name == "save_params":
            why = "it is not a file"
        elif path.resolve() in taken and not other:
            why = "another file of the run is to be written there"
        if why is not None:
            raise PlacerError(f"cannot write '{path}': {why}")
        taken.add(path.resolve())
    return paths


def _endpoints(plan: Plan, base_port: int | None) -> dict[str, str]:
    if base_port is None:
        return free_endpoints([node.name for node in plan.nodes])
    last = base_port + len(plan.nodes) - 1
    if last > 65535:
        raise PlacerError(
            f"{len(plan.nodes)} nodes from port {base_port} on would need port {last}",
            hint="ports end at 65535",
        )
    from placer.runtime.run.process import endpoints_of

    return endpoints_of(plan, base_port)


def _check_threads(**given: Any) -> None:
    """Threads have no ports, no carrier, no logs, and report to nobody."""
    for name, value in given.items():
        if value not in (None, "auto"):
            raise PlacerError(
                f"'{name}' does not go with in-process nodes, which are threads"
            )
