"""Run a node as a process, or all nodes as threads of one process.

How a run is interrupted:

- A node process that reads a byte from `order_fd` requests a stop: all nodes stop after
  the same step and save (see `stopping`). Its launcher decides when to send the byte.
- With threads, the first interrupt requests a stop. It ends the run at once, without
  saving, if no step was started or the nodes take too long to stop; so does a second
  interrupt. An interrupt no longer limits the time once the run is saving.
- A process whose launcher has ended exits at once; its peers learn why.
- A process whose run has failed elsewhere exits after `EXIT_TIMEOUT`, even if its
  compute thread is stuck where it cannot notice the failure.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from placer.build.plan import BASE_PORT, NodePlan, Plan, read_plan
from placer.channel.protocol import Aborted, Cause, Channel
from placer.errors import PlacerError, RunError, missing_package_hint
from placer.memory.allocator import keep_memory
from placer.memory.caches import trim_caches
from placer.memory.compilation import keep_compiled
from placer.reentry import node_in_process, node_in_thread
from placer.runtime.program.devices import reserve_cpu_devices
from placer.runtime.program.error_lines import locate_error
from placer.runtime.program.load import Hooks, load_program
from placer.runtime.run.divergence import DivergedError
from placer.runtime.run.events import STOPPING, EventPipe, Report, print_warnings
from placer.runtime.run.executor import execute
from placer.runtime.run.options import Options
from placer.runtime.run.output import report_output
from placer.runtime.run.result import Result
from placer.runtime.run.state import Execution, Hook

Load = Callable[[Path, Plan, NodePlan], Hooks]

STATE_INTERVAL = 0.5
"""Seconds between two reports of a node's state."""
EXIT_TIMEOUT = 10.0
"""Seconds in which a node has to end by itself after the run has failed elsewhere."""
INTERRUPT_TIMEOUT = 2.0
"""Seconds in which threads have to end after an interrupt."""


def default_endpoints(plan: Plan, base_port: int | None = None) -> dict[str, str]:
    """Return the default address of each node: loopback, with consecutive ports from
    `base_port`."""
    first = BASE_PORT if base_port is None else base_port
    return {node.name: f"127.0.0.1:{first + i}" for i, node in enumerate(plan.nodes)}


def run(
    build: str | Path,
    node: str,
    *,
    endpoints: Mapping[str, str] | None = None,
    options: Options | None = None,
    report_fd: int | None = None,
    order_fd: int | None = None,
    job: str | None = None,
) -> Result | None:
    """Run one node of a build in this process until the run ends.

    Args:
        build: the build folder.
        node: the name of the node, such as `worker:0`.
        endpoints: the address `HOST:PORT` of nodes; by default, and for nodes that are
            not listed, consecutive ports on loopback from `options.base_port`.
        options: the options of the run.
        report_fd: a file descriptor to write events to, one JSON object per line.
            Without it, warnings go to standard error.
        order_fd: a file descriptor; one byte that can be read from it asks the control
            node to stop the run, after the same step on all nodes and without a last
            evaluation. The caller closes it.
        job: a name that distinguishes runs on the same addresses; by default the
            build's hash.

    Returns:
        The result of the run on the control node, None on the others.

    Raises:
        BuildError: for a build that has changed since it was compiled.
        RunError: for a failure of this node.
        Aborted: with the root cause, for a failure of another node.

    Example:
        placer.run("build", "worker:0", options=placer.Options(steps=100))
    """
    from placer.channel.transport import open_channel

    folder = Path(build)
    plan = read_plan(folder)
    me = plan.node(node)
    keep_memory(me.table_bytes + me.activation_bytes)
    options = options or Options()
    addresses = default_endpoints(plan, options.base_port)
    for name, address in (endpoints or {}).items():
        addresses[plan.node(name).name] = address
    reserve_cpu_devices([me], options.emulate or plan.emulate, alone=True)
    channel: Channel | None = None

    def exit_without_launcher() -> None:
        cause = Cause(node, "", "its launcher has ended")
        if channel is not None:
            channel.abort(cause)
        os._exit(1)

    pipe = (
        EventPipe(report_fd, exit_without_launcher) if report_fd is not None else None
    )
    report = pipe or print_warnings
    forced_exit = _ForcedExit(pipe)
    try:
        channel = open_channel(
            node,
            addresses,
            job or plan.digest,
            transport=options.transport,
            deadline=options.deadline,
            join_timeout=options.join_timeout,
        )
        channel.on_abort = forced_exit.schedule
        on_settled = forced_exit.cancel
        execution = Execution(plan, folder, me, channel, options, report, on_settled)
        if order_fd is not None:
            _start_order_thread(order_fd, execution)
        with (
            node_in_process(node),
            _report_printed_lines(node, pipe),
            _report_state_repeatedly(execution),
        ):
            return _execute_program(execution, load_program, use_cache=True)
    except BaseException as error:
        report(failure_event(node, error, channel))
        raise
    finally:
        if channel is not None:
            channel.close()
        # This process belongs to the caller, and must live on. The channel's thread,
        # which schedules the exit, has ended by now, so it cannot be scheduled again.
        forced_exit.cancel()
        if pipe is not None:
            pipe.close(EXIT_TIMEOUT)


def _start_order_thread(fd: int, execution: Execution) -> None:
    """Start a thread that requests a stop once a byte can be read from `fd`. The end of
    the file is not a request: the launcher may have ended."""

    def read() -> None:
        if os.read(fd, 1):
            execution.stopping.request()
            if execution.report is print_warnings:  # otherwise the launcher prints it
                print_warnings({"event": "warning", "message": STOPPING})

    threading.Thread(target=read, name="placer orders", daemon=True).start()


def _report_printed_lines(
    node: str, pipe: EventPipe | None
) -> AbstractContextManager[None]:
    """Report what is printed within the context to the launcher, if there is one."""
    if pipe is None:
        return nullcontext()
    return report_output(
        lambda line: pipe({"event": "output", "node": node, "text": line})
    )


class _ForcedExit:
    """Ends the process of a node that is stuck outside the channel after a failure.

    A compute thread in the channel gets `Aborted`. One that is stuck elsewhere, such as
    in the code of a source, would never end.
    """

    def __init__(self, pipe: EventPipe | None) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._cancelled = False

    def schedule(self, cause: Cause) -> None:
        """End the process in `EXIT_TIMEOUT` seconds, unless that is cancelled."""
        with self._lock:
            if self._cancelled:
                return
            self._timer = threading.Timer(EXIT_TIMEOUT, self._end, (cause,))
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        """Never end the process: its node has ended, or needs no other node any
        more."""
        with self._lock:
            self._cancelled = True
            if self._timer is not None:
                self._timer.cancel()

    def _end(self, cause: Cause) -> None:
        if self._pipe is not None:
            self._pipe.close(
                EXIT_TIMEOUT, failure_event(cause.node, Aborted(cause), None)
            )
        os._exit(1)


def run_in_threads(
    build: str | Path,
    options: Options | None = None,
    *,
    interrupts: Callable[[], Sequence[float | None]] = tuple,
) -> Result:
    """Run all nodes of a build as threads of this process, over the memory channel.

    Programs, executor and protocols are the same as with processes. After an interrupt,
    a thread that is stuck outside the channel is left behind.

    Args:
        build: the build folder.
        options: the options of the run.
        interrupts: returns an entry for each interrupt so far: the seconds in which the
            nodes have to stop, or None for no limit. After the first one all nodes stop
            after the same step and save, without a last evaluation.

    Returns:
        The result of the run.

    Raises:
        BuildError: for a build that has changed since it was compiled.
        KeyboardInterrupt: with the reason why nothing was saved: no step was started,
            the nodes did not stop in time, or there was a second interrupt.
        PlacerError: the root cause of a failed run.
    """
    from placer.channel.memory import MemoryHub

    folder = Path(build)
    plan = read_plan(folder)
    options = options or Options()
    hub = MemoryHub([node.name for node in plan.nodes], deadline=options.deadline)
    load = _load_each_program_once()

    executions = [
        Execution(plan, folder, node, hub.channel(node.name), options, print_warnings)
        for node in plan.nodes
    ]

    def run_node(execution: Execution) -> Result | None:
        try:
            with node_in_thread(execution.me.name):
                return _execute_program(execution, load)
        finally:
            execution.channel.close()

    reserve_cpu_devices(plan.nodes, options.emulate or plan.emulate, alone=False)
    runs = [
        _start_thread(partial(run_node, execution), execution.me.name)
        for execution in executions
    ]
    policy = _InterruptPolicy(executions[0])
    try:
        # Python handles signals in the main thread only, between bytecodes: the timeout
        # lets it wake up for them.
        while wait(runs, timeout=0.5).not_done:
            policy.apply(interrupts())
    except BaseException as error:
        hub.channel(plan.control).abort(Cause("", "", describe_error(error)))
        wait(runs, timeout=INTERRUPT_TIMEOUT)
        raise
    errors = [run.exception() for run in runs]
    failed = [error for error in errors if error is not None]
    if failed:
        raise next(
            (error for error in failed if not isinstance(error, Aborted)), failed[0]
        )
    result = runs[0].result()
    assert result is not None
    return result


@dataclass(slots=True)
class _InterruptPolicy:
    """Decides what interrupts do to a run in threads: stop it after a step, or end it
    at once.

    Attributes:
        control: the control node's run.
        requested_at: the time at which the stop was requested, if it was.
    """

    control: Execution
    requested_at: float | None = None

    def apply(self, interrupts: Sequence[float | None]) -> None:
        """Apply the policy to all interrupts so far; KeyboardInterrupt ends the run at
        once."""
        if not interrupts:
            return
        if len(interrupts) > 1:
            raise KeyboardInterrupt("nothing was saved: there was a second signal")
        if self.requested_at is None:
            if self.control.step == 0:
                raise KeyboardInterrupt("nothing was saved: there was no step yet")
            self.requested_at = time.monotonic()
            self.control.stopping.request()
            print_warnings({"event": "warning", "message": STOPPING})
        grace = interrupts[0]
        is_late = grace is not None and time.monotonic() - self.requested_at > grace
        # Once the nodes have stopped and save, they may take as long as they need.
        if is_late and self.control.state not in ("saving", "writing", "done"):
            raise KeyboardInterrupt(
                f"nothing was saved: the nodes did not stop within {grace:g} s"
            )


def _load_each_program_once() -> Load:
    """Return a function that loads a program for the first thread that runs it. Other
    threads get the same functions, so that JAX compiles them once."""
    lock = threading.Lock()
    loaded: dict[str, Hooks] = {}

    def load(folder: Path, plan: Plan, node: NodePlan) -> Hooks:
        with lock:
            if node.program not in loaded:
                loaded[node.program] = load_program(folder, plan, node)
            return loaded[node.program]

    return load


def _start_thread(
    call: Callable[[], Result | None], node: str
) -> Future[Result | None]:
    """Call `call` in a daemon thread, which does not keep the process from ending."""
    future: Future[Result | None] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=f"placer {node}", daemon=True).start()
    return future


def main(file: str, *hooks: Hook) -> None:
    """Run the node of a program file, with the options of `placer run`.

    A node program calls this when it is run as a script. It runs the command `placer
    run` with the node and build folder of the file and the script's options; the
    command checks the hash of the program and loads its hooks.

    Args:
        file: the path of the program, `__file__`.
        hooks: the program's `step` and `evaluate`; they are not used.

    Example:
        if __name__ == "__main__":
            main(__file__, step, evaluate)
    """
    program = Path(file).resolve()
    kind, _, number = program.parent.name.rpartition("-")
    folder, node = str(program.parent.parent), f"{kind}:{number}"
    sys.argv = ["placer", "run", folder, "--node", node, *sys.argv[1:]]
    # Like `python -m`: the runtime is below the command line, and does not import it.
    runpy.run_module("placer.command", run_name="__main__")


def _execute_program(
    execution: Execution, load: Load, *, use_cache: bool = False
) -> Result | None:
    """Execute the node's program; any exception here becomes the root cause of the run.

    With `use_cache`, the process caches what JAX compiles. Nodes that are threads do
    not: they could read entries that another one is still writing, and the
        configuration of
    the process belongs to the caller.
    """
    channel = execution.channel
    try:
        if use_cache:
            trim_caches()
        if use_cache and execution.me.computes:
            keep_compiled()
        hooks = load(execution.folder, execution.plan, execution.me)
        return execute(execution, *hooks)
    except Aborted:
        raise
    except BaseException as error:
        what = describe_error(error)
        line = locate_error(execution.folder, execution.me.program, error.__traceback__)
        if line is not None and isinstance(error, Exception):
            what += f"\n  {line}"
        cause = Cause(channel.node, execution.where, what)
        if isinstance(error, DivergedError):  # not caused by this node
            cause = Cause("", "", what)
        channel.abort(cause)
        if isinstance(error, PlacerError | KeyboardInterrupt):
            raise
        raise RunError(str(cause)) from error


def describe_error(error: BaseException) -> str:
    """Return what happened, in one or two lines."""
    if isinstance(error, PlacerError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "it was interrupted"
    if hint := missing_package_hint(error):
        return f"{type(error).__name__}: {error}\n  hint: {hint}"
    text, has_trace, trace = f"{type(error).__name__}: {error}".partition(TRACEBACK)
    # XLA's message about a failed callback contains Python's whole traceback.
    if has_trace:
        text += next(filter(_RAISED, reversed(trace.splitlines())), "").strip()
    return text.strip()


TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"[A-Za-z_][\w.]*: ").match
"""Matches the line of a traceback that names the exception."""


def failure_event(
    node: str, error: BaseException, channel: Channel | None
) -> dict[str, object]:
    """Return the event of a failed node. Its `root` is false if another node failed."""
    cause = Cause(node, "", describe_error(error))
    if isinstance(error, Aborted):
        cause = error.cause
    elif channel is not None and channel.aborted is not None:
        cause = channel.aborted  # this node's own cause, with the position
    return {
        "event": "failed",
        "cause": {"node": cause.node, "where": cause.where, "what": cause.what},
        "root": not isinstance(error, Aborted),
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


class _report_state_repeatedly:  # noqa: N801 - a context manager, used as a verb
    """Reports a node's state every `STATE_INTERVAL` seconds while it runs."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="placer report", daemon=True
        )

    def __enter__(self) -> None:
        if self._execution.report is not print_warnings:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(STATE_INTERVAL):
            self._execution.report_state()


__all__ = [
    "Options",
    "Report",
    "Result",
    "default_endpoints",
    "main",
    "run",
    "run_in_threads",
]
