"""Runs all nodes of a build as threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import NoReturn

from placer.place.node_kinds import NodeId
from placer.plan.plan import read_plan
from placer.runtime.callbacks.callbacks import CallbackQueue
from placer.runtime.control.common_step import Action
from placer.runtime.control.events import Event, Report, show_output
from placer.runtime.control.execution import Execution
from placer.runtime.control.failure import cause_of, describe_error
from placer.runtime.control.options import Options
from placer.runtime.control.pace import ControlPace
from placer.runtime.control.result import Outcome
from placer.runtime.control.shared_rows import SharedRows
from placer.runtime.exchange.devices import configure_jax
from placer.runtime.node.program_file import Programs
from placer.runtime.prediction.request import PredictionRequest
from placer.runtime.process.nodes import begin_run, result_of, run_node
from placer.runtime.saving.start_choice import choose_start
from placer.runtime.signals.interruption import Interruption, interruption_of
from placer.system.cores import fix_threads
from placer.system.owned_threads import OwnedThreads

INTERRUPT_TIMEOUT = 2.0
"""Seconds to wait for threads to end after an interrupt."""


def run_in_threads(
    build: str | Path,
    options: Options | None = None,
    *,
    interrupts: Callable[[], int] = int,
    interruption: Interruption | None = None,
    watch: Report = show_output,
    calls: CallbackQueue | None = None,
    prediction: PredictionRequest | None = None,
) -> Outcome:
    """Run all nodes of a build as threads of this process, over the memory channel.

    The programs and protocols are the same as with processes. After an interrupt, a thread
    that is stuck outside the channel is left behind.

    Args:
        build: the build folder.
        options: the options of the run.
        interrupts: returns the number of interrupts so far. After the first interrupt, all
            nodes stop after the same step and save, without a last evaluation.
        interruption: decides how to react to interrupts; by default it follows `options`.
        watch: called with the events of the nodes, from their threads.
        calls: the callbacks of the run. They are called in this thread.
        prediction: predict these rows instead of training.

    Returns:
        The result of the run.

    Raises:
        BuildError: if the build has changed since it was compiled.
        KeyboardInterrupt: with the reason why nothing was saved: no step had started, the
            nodes did not stop in time, or a second interrupt arrived.
        PlacerError: the root cause of a failed run.
    """
    from placer.channel.in_process import memory_channels

    folder = Path(build)
    plan = read_plan(folder)
    fix_threads()
    options = options or Options()
    interruption = interruption or interruption_of(plan, folder, options)
    calls = calls if calls is not None else CallbackQueue(())
    options = choose_start(options, watch)
    names = [node.name for node in plan.nodes]
    channels = memory_channels(names, deadline=options.deadline)
    programs, threads = Programs(folder, plan), OwnedThreads()

    def report(event: Event) -> None:
        interruption.note(event)
        watch(event)
        calls.add(event)

    rows = {process: SharedRows() for process in plan.processes}
    executions = [
        Execution(
            plan,
            folder,
            node,
            channels[node.name],
            options,
            report,
            shared_rows=rows[NodeId(node.name).process],
            paced=calls.has_callbacks,
        )
        for node in plan.nodes
    ]

    def run(execution: Execution) -> Outcome | None:
        try:
            return run_node(execution, programs, prediction)
        finally:
            execution.close()
            execution.channel.close()

    configure_jax(plan.nodes, options.emulate or plan.settings.emulate, alone=False)
    ends = [begin_run(threads, run, execution) for execution in executions]
    control = executions[0]

    stop = partial(control.common_step.request, Action.STOP)
    calls.on_stop = stop
    if isinstance(control.pace, ControlPace):
        calls.on_called = control.pace.steps_called
    for end in ends:
        end.add_done_callback(lambda _: calls.wake())

    def end_run() -> NoReturn:
        raise KeyboardInterrupt(interruption.outcome(None))

    try:
        while not all(end.done() for end in ends):
            # Python handles signals only in the main thread, between bytecodes. With a
            # timeout the thread wakes up to handle them.
            calls.wait(0.5)
            calls.call_next()
            interruption.obey(
                interrupts(), control.state, control.report, stop=stop, end=end_run
            )
    except BaseException as error:
        calls.close()
        channels[plan.control].abort(cause_of(error, describe_error(error)))
        if not wait(ends, timeout=INTERRUPT_TIMEOUT).not_done:
            threads.join()
        raise
    threads.join()
    try:
        result = result_of(ends)
    except BaseException:
        calls.close()
        raise
    while calls.call_next():
        pass
    assert result is not None
    return result
