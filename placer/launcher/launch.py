"""Runs all nodes of a build, as processes on this machine or others, or as threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

from placer.errors import PlacerError, RunError, RunWarning
from placer.launcher.checks import check_launch
from placer.launcher.data_check import check_build_data
from placer.launcher.elastic import Elastic
from placer.launcher.elastic_checks import Least, check_elastic
from placer.launcher.engine_job import OnEngine
from placer.launcher.logs import LogFolder, log_folder
from placer.launcher.processes import run_processes
from placer.launcher.remote import Hosts
from placer.launcher.result_parts import StepHistory, params_keeper
from placer.launcher.run_folder import recorded_launch
from placer.launcher.start_arrays import check_arrays, options_of
from placer.launcher.supervise import Watch
from placer.plan.folder import check_outside
from placer.plan.plan import Plan
from placer.runtime.callbacks.callbacks import CallbackQueue, check_callbacks
from placer.runtime.control.checkpoint_settings import checkpoint_settings
from placer.runtime.control.events import Event, show_output
from placer.runtime.control.option_checks import check_thread_options
from placer.runtime.control.options import Options, takes_options
from placer.runtime.control.result import Result
from placer.runtime.signals.interruption import Interruption, interruption_of
from placer.runtime.signals.signals import catch_signals, end_shown
from placer.system.callsite import warn_at_caller

AnyPath = str | Path

RESTARTS_HINT: Final = "with 'restarts' (--restarts N) a run goes on after a failure, from its last checkpoint"
"""The hint of a run whose first failure has ended it."""


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
    hosts: Hosts | AnyPath | None = None,
    on: OnEngine | str | None = None,
    elastic: Least | None = None,
    **options: Any,
) -> Result:
    """Run all nodes of a build until the run ends, by default on this machine.

    SIGINT, SIGTERM and SIGHUP end all processes. The processes of the nodes handle these
    signals, and so does this process if the call is in its main thread. With
    `save_params` or `checkpoint`, the first signal stops all nodes after the same step,
    and they save; a second signal ends the processes at once.

    Args:
        build: the build folder.
        in_process: run the nodes as threads of this process instead of as processes.
        logs: the folder for the log of each node, such as worker-0.log. Default: a folder
            in the user's cache, removed after a successful run.
        watch: a function that is called with each event of the nodes' processes. By
            default, warnings and the output of the nodes are printed on standard error,
            with a prefix such as `worker:0| `.
        progress: show the progress of the run: in a notebook as an output of the cell,
            elsewhere on standard error, as `placer launch` does. By default it is shown
            in notebooks and on terminals, unless `watch` is given.
        return_params: gather the parameters for `Result.params`. By default they are
            gathered if they have at most 256 MiB. Not needed with `save_params`:
            `Result.params` reads its file.
        callbacks: objects with any of the methods of `placer.Callback`. They are called
            in this thread, in the order of the steps. If a method returns `placer.STOP`,
            the run ends normally after the current step. If it raises an exception, the
            run ends and the exception is raised here.
        tensorboard: a folder for TensorBoard. Metrics, learning rates and speed are
            written to a subfolder for the run: `NAME-1`, `NAME-2` and so on.
        hosts: a file that names the machines of the nodes (docs/how-to/machines.md). The nodes
            are started there over ssh. Paths in options refer to files on those machines,
            except `key`. Use `placer.Hosts` to also set the ssh command, the interpreter
            and the data folder.
        on: run the nodes as a job of this engine: `"slurm"`, `"kubernetes"`, `"ray"`, or
            `placer.OnEngine("slurm", {"partition": "short"})` with options. Paths in
            options refer to files on the machines of the engine, except `key`.
        elastic: the smallest number of nodes of each kind with which the run may go on, such
            as `{"worker": 2, "ps": 1}` or `"worker=2,ps=1"`. With `restarts`, a node that has
            not come back within `join_timeout` is given up, and the run goes on with fewer
            nodes. Results then differ by rounding.
        options: the fields of `placer.Options`, such as `steps=100`; see `placer launch
            --help`. `init_params` may also be a dict of arrays, such as `Result.params`.

    Returns:
        The `Result` of the run: steps, metrics, evaluation, speed, bytes sent, `history`
        and `params`. Its `warnings` list the failures after the result and all files were
        complete; each is also a RunWarning.

    Raises:
        PlacerError: the options are invalid or cannot be combined; `tensorboard` needs
            `pip install '.[tensorboard]'` in a clone of placer.
        BuildError: the build was edited.
        DataError: a file of rows is missing, or does not fit the model.
        RunError: a node failed. The text names the root cause; all processes have ended.
        KeyboardInterrupt: this process or a node received SIGINT.
        SystemExit: this process or a node received SIGTERM or SIGHUP.
        Exception: the exception of a callback.

    Example:
        placer.compile("digits.yaml", "build")
        result = placer.launch("build", steps=100)
        print(result.eval["accuracy"])
    """
    # `placer launch` uses other functions of this module, and needs no compiler.
    from placer.compiler.frontend.unknown_arguments import refuse_unknown

    refuse_unknown("launch", options)
    folder = Path(build)
    with options_of(options) as chosen:
        if hosts is not None and on is not None:
            raise PlacerError("'hosts' and 'on' cannot be combined")
        if hosts is not None and not isinstance(hosts, Hosts):
            hosts = Hosts(Path(hosts))
        machines = OnEngine(on) if isinstance(on, str) else hosts or on
        plan, chosen = check_launch(folder, chosen, machines=machines)
        if machines is not None and (return_params or in_process):
            name = "return_params" if return_params else "in_process"
            raise PlacerError(f"'{name}' cannot be used with nodes on other machines")
        check_arrays(plan, options, chosen, elsewhere=machines is not None)
        if machines is None:
            check_build_data(plan, folder)
        with recorded_launch(folder, plan, chosen, is_here=machines is None) as record:
            return launch_checked(
                folder,
                plan,
                chosen,
                in_process=in_process,
                logs=logs,
                watch=watch,
                progress=progress,
                return_params=return_params,
                callbacks=callbacks,
                tensorboard=tensorboard,
                machines=machines,
                elastic=elastic,
                note=record.note,
                folder=lambda: record.folder,
            )


def launch_checked(
    build: Path,
    plan: Plan,
    options: Options,
    *,
    in_process: bool = False,
    logs: AnyPath | None = None,
    watch: Watch | None = None,
    progress: bool | None = None,
    return_params: bool | None = None,
    callbacks: Iterable[object] = (),
    tensorboard: AnyPath | None = None,
    machines: Hosts | OnEngine | None = None,
    elastic: Least | None = None,
    note: Watch,
    folder: Callable[[], Path | None],
    show: Watch = show_output,
) -> Result:
    """Run a build with the plan and the options of `check_launch`, and call `note` with
    each event. `folder` returns the folder of the run, which may not exist before the
    first step. `show` prints the messages of a run in threads. See `launch` for the other
    arguments."""
    history = StepHistory()
    chosen = check_elastic(
        build,
        plan,
        options,
        elastic,
        machines=machines,
        in_process=in_process,
        folder=folder,
    )

    def keep(event: Event) -> None:
        note(event)
        history.add(event)

    interruption = interruption_of(plan, build, options)
    with (
        end_shown(),
        callback_queue(plan, build, options, callbacks, tensorboard) as calls,
        params_keeper(
            plan, options, return_params, elsewhere=machines is not None
        ) as params,
    ):
        if in_process:
            check_thread_options(
                options, logs=logs, watch=watch, progress=progress or None
            )
            shown = _both(keep, show)
            result = _launch_threads(build, params.options, interruption, shown, calls)
        else:
            with (
                log_folder(logs, plan.name, build) as run_logs,
                _shown(plan, watch, progress, folder) as show,
            ):
                result = launch_processes(
                    build,
                    plan,
                    params.options,
                    run_logs,
                    _both(keep, show),
                    interruption,
                    calls,
                    machines,
                    chosen,
                )
        # The result has more warnings than its event, if a node failed after it.
        note(result)
        params.attach(result, history)
    for text in result.warnings:
        warn_at_caller(text, RunWarning)
    return result


@contextmanager
def callback_queue(
    plan: Plan,
    build: Path,
    options: Options,
    callbacks: Iterable[object] = (),
    tensorboard: AnyPath | None = None,
) -> Iterator[CallbackQueue]:
    """Yield the queue of steps for callbacks and TensorBoard. Raises PlacerError before
    the run, if an object is not a callback or a file of TensorBoard cannot be written."""
    checked = check_callbacks(callbacks)
    if tensorboard is None:
        yield CallbackQueue(checked)
        return
    from placer.runtime.callbacks.tensorboard import TensorBoard, run_folder

    check_outside(Path(tensorboard), build, "for TensorBoard to ")
    settings = checkpoint_settings(plan, build, options)
    saved = settings.folder if settings is not None else None
    folder = run_folder(Path(tensorboard), plan.name, saved, options.resume)
    with TensorBoard(folder, resumed=options.resume is not None) as writer:
        yield CallbackQueue((*checked, writer))


@contextmanager
def _shown(
    plan: Plan,
    watch: Watch | None,
    progress: bool | None,
    folder: Callable[[], Path | None],
) -> Iterator[Watch]:
    """Yield the function to call with each event: for the progress, `watch`, or both."""
    from placer.report.progress.show import show_progress_of_script
    from placer.report.progress.view import RunView

    if watch is not None and not progress:
        yield watch
        return
    shown = show_progress_of_script(RunView.of_plan(plan, folder=folder), progress)
    with shown if shown is not None else nullcontext(show_output) as show:
        if watch is None:
            yield show
            return
        yield _both(show, watch)


def _both(first: Watch, second: Watch) -> Watch:
    def watch(event: Event) -> None:
        first(event)
        second(event)

    return watch


def launch_processes(
    build: Path,
    plan: Plan,
    options: Options,
    logs: LogFolder,
    watch: Watch,
    interruption: Interruption,
    calls: CallbackQueue,
    machines: Hosts | OnEngine | None = None,
    elastic: Elastic | None = None,
) -> Result:
    """Run the nodes of a build as processes, after `check_launch`; see `launch`.
    `interruption` decides how the run reacts to signals, and `calls` is the queue of
    steps for callbacks."""
    try:
        result = run_processes(
            build,
            plan,
            options,
            logs,
            watch,
            interruption,
            calls=calls,
            machines=machines,
            elastic=elastic,
        )
    except RunError as error:
        could_restart = machines is None and interruption.has_steps
        # Some errors have a hint in their text: these would come again.
        if could_restart and not options.restarts and "hint: " not in str(error):
            error.hint = RESTARTS_HINT
        raise
    assert isinstance(result, Result)
    return result


def _launch_threads(
    build: Path,
    options: Options,
    interruption: Interruption,
    watch: Watch,
    calls: CallbackQueue,
) -> Result:
    """Run the nodes of a build as threads, and call `watch` with the events."""
    from placer.runtime.process.threads import run_in_threads

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
            interruption.explain(error)
            raise
        assert isinstance(result, Result)
        signals.raise_first(interruption.outcome(result.steps))
        return result
