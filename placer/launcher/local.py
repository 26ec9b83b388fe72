"""Runs all nodes of a build on this machine, as processes or as threads."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from placer.build.plan import Plan, read_plan, read_sources
from placer.channel.keys import find_key, new_key, pass_key
from placer.channel.ports import free_endpoints
from placer.checkpoint.folder import check_continues
from placer.errors import PlacerError, RunError, RunWarning
from placer.launcher.kept import StepHistory, params_keeper
from placer.launcher.logs import LogFolder, log_folder
from placer.launcher.node_command import node_command, node_environment
from placer.launcher.node_process import NodeProcess, start_node
from placer.launcher.supervise import Watch, supervise
from placer.reentry import refuse_at_import, refuse_in_node
from placer.runtime.run.callbacks import CallbackQueue, check_callbacks
from placer.runtime.run.checkpoint_settings import (
    checkpoint_folder,
    checkpoint_settings,
)
from placer.runtime.run.events import Event, show_output
from placer.runtime.run.interruption import Interruption, interruption_of
from placer.runtime.run.options import OPTIONS, Options, read_options, takes_options
from placer.runtime.run.prediction_request import PredictionRequest
from placer.runtime.run.result import Outcome, Result
from placer.runtime.run.signals import catch_signals, end_shown
from placer.runtime.run.start_choice import choose_start

AnyPath = str | Path


@takes_options
def launch(
    build: AnyPath,
    *,
    in_process: bool = False,
    logs: AnyPath | None = None,
    watch: Watch | None = None,
    progress: bool | None = None,
    return_params: bool | None = None,
    callbacks: Iterable[object] = (),
    tensorboard: AnyPath | None = None,
    **options: Any,
) -> Result:
    """Run all nodes of a build on this machine until the run ends.

    SIGINT, SIGTERM and SIGHUP end all processes. They are caught in the processes of the
    nodes, and in this one if this is called in its main thread. With `save_params` or
    `checkpoint`, the first of these signals stops all nodes after the same step, and
    they save; a second one ends the processes at once.

    Args:
        build: the build folder.
        in_process: run the nodes as threads of this process instead of as processes.
        logs: the folder for the log of each node, such as worker-0.log. By default a
            folder in the user's cache, removed after a successful run.
        watch: a function that is called with each event of the nodes' processes. By
            default the lines that nodes print, with a prefix such as `worker:0| `, and
            their warnings are printed on standard error.
        progress: show the progress of the run: in a notebook as an output of the cell,
            elsewhere on standard error, as `placer launch` does. By default it is shown
            in notebooks and on terminals, unless there is a `watch`.
        return_params: gather the parameters for `Result.params`. By default only if
            they have at most 256 MiB. Not needed with `save_params`, from whose file
            `Result.params` reads them.
        callbacks: objects with any of the methods of `placer.Callback`. They are called
            in this thread, in the order of the steps. A method that returns
            `placer.STOP` ends the run after the step that is running, as if it had no
            more steps; an exception ends it too, and is raised.
        tensorboard: a folder. Metrics, learning rates and speed are written to a folder
            of the run in it, `NAME-1`, `NAME-2` and so on, for TensorBoard.
        options: the fields of `placer.Options`, such as `steps=100`, by default as
            there. `placer launch --help` explains them.

    Returns:
        The `Result` of the run: steps, metrics, evaluation, speed, bytes sent, and its
        `history` and `params`. Its `warnings` are the failures after the run had its
        result and all of its files; each is also a RunWarning.

    Raises:
        PlacerError: the options are wrong or cannot be combined; `tensorboard` needs
            `pip install 'placer[tensorboard]'`.
        BuildError: the build was edited.
        RunError: a node failed. The text says the root cause; all processes have ended.
        KeyboardInterrupt: SIGINT was received, by this process or that of a node.
        SystemExit: SIGTERM or SIGHUP was received.
        Exception: what a callback raised.

    Example:
        placer.compile("digits.yaml", "build")
        result = placer.launch("build", steps=100)
        print(result.eval["accuracy"])
    """
    folder, chosen = Path(build), read_options(options)
    plan = check_launch(folder, chosen)
    history = StepHistory()
    interruption = interruption_of(plan, folder, chosen)
    with (
        end_shown(),
        callback_queue(plan, folder, chosen, callbacks, tensorboard) as calls,
        params_keeper(plan, chosen, return_params) as params,
    ):
        if in_process:
            given = {"logs": logs, "watch": watch, "progress": progress or None}
            for name, value in given.items():
                if value is not None:
                    raise threads_error(name)
            result = _launch_threads(
                folder, params.options, interruption, history, calls
            )
        else:
            with (
                log_folder(logs, plan.name) as run_logs,
                _shown(plan, watch, progress) as show,
            ):

                def keep_and_show(event: Event) -> None:
                    history.add(event)
                    show(event)

                result = launch_processes(
                    folder,
                    plan,
                    params.options,
                    run_logs,
                    keep_and_show,
                    interruption,
                    calls,
                )
        params.attach(result, history)
    for text in result.warnings:
        warnings.warn(text, RunWarning, stacklevel=2)
    return result


@contextmanager
def callback_queue(
    plan: Plan,
    build: Path,
    options: Options,
    callbacks: Iterable[object] = (),
    tensorboard: AnyPath | None = None,
) -> Iterator[CallbackQueue]:
    """Yield the queue of steps for the callbacks of a run, and for TensorBoard.

    Raises PlacerError, before the run, for what is no callback, and if TensorBoard's
    files cannot be written.
    """
    checked = check_callbacks(callbacks)
    if tensorboard is None:
        yield CallbackQueue(checked)
        return
    from placer.report.tensorboard import TensorBoard, run_folder

    settings = checkpoint_settings(plan, build, options)
    saved = settings.folder if settings is not None else None
    folder = run_folder(Path(tensorboard), plan.name, saved, options.resume)
    with TensorBoard(folder, resumed=options.resume is not None) as writer:
        yield CallbackQueue((*checked, writer))


@contextmanager
def _shown(plan: Plan, watch: Watch | None, progress: bool | None) -> Iterator[Watch]:
    """Yield what is called with each event: the progress, `watch`, or both."""
    from placer.report.progress.show import show_progress_of_script

    if watch is not None and not progress:
        yield watch
        return
    nodes = [node.name for node in plan.nodes]
    shown = show_progress_of_script(plan.name, nodes, progress)
    with shown if shown is not None else nullcontext(show_output) as show:
        if watch is None:
            yield show
            return

        def show_and_watch(event: Event) -> None:
            show(event)
            watch(event)

        yield show_and_watch


def check_launch(build: Path, options: Options) -> Plan:
    """Return the plan of a build; PlacerError if it must not be launched like this."""
    refuse_in_node("placer.launch")
    plan = read_plan(build)
    if not plan.minimize:
        raise PlacerError(f"the build '{build}' can only predict")
    spec = build / read_sources(build).spec
    refuse_at_import("placer.launch", spec.parent, plan.modules)
    check_output_files(build, options)
    check_resumed(plan, spec, options)
    _check_checkpoints(plan, build, options)
    return plan


def launch_processes(
    build: Path,
    plan: Plan,
    options: Options,
    logs: LogFolder,
    watch: Watch,
    interruption: Interruption,
    calls: CallbackQueue,
) -> Result:
    """Run the nodes of a build as processes, after `check_launch`; see `launch`.

    `interruption` decides what signals do, `calls` has the callbacks.
    """
    result = run_processes(build, plan, options, logs, watch, interruption, calls=calls)
    assert isinstance(result, Result)
    return result


def run_processes(
    build: Path,
    plan: Plan,
    options: Options,
    logs: LogFolder,
    watch: Watch,
    interruption: Interruption,
    prediction: PredictionRequest | None = None,
    calls: CallbackQueue | None = None,
) -> Outcome:
    """Run the nodes of a build as processes, to train, or to predict some rows."""
    options = choose_start(options, watch)
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
    key_fd = pass_key(find_key(options.key) or new_key())
    try:
        result = launch_nodes(
            nodes,
            command,
            logs.folder,
            node_environment(key_fd),
            watch,
            interruption,
            calls,
            inherited=(key_fd,),
        )
    finally:
        os.close(key_fd)
    logs.failed = bool(result.warnings)
    return result


def _launch_threads(
    build: Path,
    options: Options,
    interruption: Interruption,
    history: StepHistory,
    calls: CallbackQueue,
) -> Result:
    """Run the nodes of a build as threads; see `launch`.

    If the run saves anything, a signal stops them after a step, and they save.
    """
    check_thread_options(options)
    from placer.runtime.run.threads import run_in_threads

    def watch(event: Event) -> None:
        history.add(event)
        show_output(event)

    if not interruption.saves:
        result = run_in_threads(
            build, options, watch=watch, interruption=interruption, calls=calls
        )
        assert isinstance(result, Result)
        return result
    with catch_signals() as signals:
        calls.guard = partial(signals.raised_from, 2)
        try:
            result = run_in_threads(
                build,
                options,
                watch=watch,
                interrupts=lambda: len(signals.received),
                interruption=interruption,
                calls=calls,
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
    interruption: Interruption,
    calls: CallbackQueue | None = None,
    *,
    inherited: Sequence[int] = (),
) -> Outcome:
    """Start a process for each node and watch the processes until all have ended.

    The first node is the control node. `command(node)` returns the command line of a
    node; `--report-fd N` is appended, and the node writes the events of
    `placer.runtime.run.events` to that descriptor. It also has the descriptors
    `inherited`. `interruption` decides what
    signals do, `calls` has the callbacks. Raises the same errors as `launch`.
    """
    if not hasattr(os, "pidfd_open"):
        raise RunError(
            "nodes can run as processes on Linux only", hint="use --in-process"
        )
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlacerError(
            f"cannot create the folder for logs '{logs}': {error.strerror}"
        ) from error
    with catch_signals() as signals, ExitStack() as exits:
        children: list[NodeProcess] = []
        for node in nodes:
            control = not children
            child = start_node(
                node,
                command(node),
                log_path(logs, node),
                env,
                takes_orders=control,
                inherited=inherited,
            )
            children.append(child)
            exits.callback(child.close)
        return supervise(
            children,
            watch,
            signals,
            interruption,
            calls if calls is not None else CallbackQueue(()),
        )


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


def check_resumed(plan: Plan, spec: Path, options: Options) -> None:
    """Raise PlacerError if a run of a spec cannot continue as its options say."""
    resumed, own = options.resume, checkpoint_folder(plan, spec, options)
    if resumed is not None and not resumed.is_dir() and resumed.resolve() != own:
        raise PlacerError(
            f"cannot resume: there is no folder '{resumed}'",
            hint="only the run's own folder, as --checkpoint names it, need not exist at"
            " the first start",
        )
    if resumed is not None and options.init_params is not None:
        raise PlacerError(
            "'resume' (--resume) and 'init_params' (--init-params) cannot be combined",
            hint="a run that continues has its parameters from the checkpoint",
        )
    if options.partial and options.resume is None:
        raise PlacerError("'partial' (--partial) needs 'resume' (--resume DIR)")


def _check_checkpoints(plan: Plan, build: Path, options: Options) -> None:
    """Raise PlacerError if a folder of checkpoints cannot be used."""
    settings = checkpoint_settings(plan, build, options)
    if settings is not None and settings.folder.is_relative_to(build.resolve()):
        raise PlacerError(
            f"cannot write checkpoints to '{settings.folder}': it is inside the build"
            " folder"
        )
    if settings is not None:
        check_continues(settings.folder, options.resume)


def check_thread_options(options: Options) -> None:
    """Raise PlacerError for an option that nodes in threads cannot use."""
    for option in OPTIONS:
        if not option.for_threads and getattr(options, option.name) != option.default:
            raise threads_error(option.name)


def threads_error(option: str) -> PlacerError:
    return PlacerError(
        f"'{option}' cannot be used with in-process nodes, which are threads"
    )
