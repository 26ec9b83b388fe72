"""A node as a process, or all nodes as threads of one."""

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

from placer.build.plan import BASE_PORT, Node, Plan, read_plan
from placer.channel.protocol import Aborted, Cause, Channel
from placer.errors import PlacerError, RunError, missing_package
from placer.memory.allocator import keep_memory
from placer.memory.caches import bound
from placer.memory.compilation import keep_compiled
from placer.reentry import in_process, in_thread
from placer.runtime.program.devices import reserve
from placer.runtime.program.error_lines import culprit
from placer.runtime.program.load import Hooks, load_program
from placer.runtime.run.divergence import DivergedError
from placer.runtime.run.events import STOPPING, Pipe, Report, nobody
from placer.runtime.run.executor import execute
from placer.runtime.run.output import reported
from placer.runtime.run.state import Execution, Hook, Options, Result

Load = Callable[[Path, Plan, Node], Hooks]

BEAT = 0.5
"""Seconds between two reports of a node's state."""
STUCK = 10.0
"""Seconds that a node has to end by itself once the run has failed elsewhere."""


INTERRUPTED = 2.0
"""Seconds that threads have to end once they were interrupted."""


def endpoints_of(plan: Plan, base_port: int | None = None) -> dict[str, str]:
    """Where the nodes listen when nobody says: loopback, ports one after the other."""
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
    """Be one node of a build until the run ends; the control node returns the Result.

    `endpoints` are the addresses of all nodes; `job` is what keeps runs apart, by
    default the build's hash. What can be read from `order_fd`, which stays the caller's,
    asks the control node to stop the run: after the same step on all nodes, without a
    last evaluation. Raises BuildError for an edited build, RunError for a failure here,
    Aborted with the root cause for one elsewhere.
    """
    from placer.channel.transport import open_channel

    folder = Path(build)
    plan = read_plan(folder)
    me = plan.node(node)
    keep_memory(me.table_bytes + me.activation_bytes)
    options = options or Options()
    reserve([me], options.emulate or plan.emulate, alone=True)
    channel: Channel | None = None

    def orphaned() -> None:
        cause = Cause(node, "", "its launcher is gone")
        if channel is not None:
            channel.abort(cause)
        os._exit(1)

    pipe = Pipe(report_fd, orphaned) if report_fd is not None else None
    report = pipe or nobody
    ending = _Ending(pipe)
    try:
        channel = open_channel(
            node,
            dict(endpoints) if endpoints else endpoints_of(plan),
            job or plan.digest,
            carrier=options.carrier,
            deadline=options.deadline,
            join_timeout=options.join_timeout,
        )
        channel.on_abort = ending.begin
        settle = ending.cancel
        execution = Execution(plan, folder, me, channel, options, report, settle)
        if order_fd is not None:
            _obey(order_fd, execution)
        with in_process(node), _printing(node, pipe), _beating(execution):
            return _attempt(execution, load_program, keep=True)
    except BaseException as error:
        report(failure(node, error, channel))
        raise
    finally:
        if channel is not None:
            channel.close()
        # The channel's thread, which begins it, has ended: this process is the caller's.
        ending.cancel()
        if pipe is not None:
            pipe.close(STUCK)


def _obey(fd: int, execution: Execution) -> None:
    """Request a stop once there is something to read; the end of the file is none."""

    def read() -> None:
        if os.read(fd, 1):
            execution.stopping.request()
            if execution.report is nobody:  # else the launcher says it
                nobody({"event": "warning", "message": STOPPING})

    threading.Thread(target=read, name="placer orders", daemon=True).start()


def _printing(node: str, pipe: Pipe | None) -> AbstractContextManager[None]:
    """Tell the launcher, if there is one, what is printed meanwhile."""
    if pipe is None:
        return nullcontext()
    return reported(lambda line: pipe({"event": "output", "node": node, "text": line}))


class _Ending:
    """Ends a node that has heard of a failure and is stuck outside the channel."""

    def __init__(self, pipe: Pipe | None) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._cancelled = False

    def begin(self, cause: Cause) -> None:
        """End the process `STUCK` seconds from now, unless that is cancelled."""
        with self._lock:
            if self._cancelled:
                return
            self._timer = threading.Timer(STUCK, self._end, (cause,))
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        """A failure elsewhere does not concern this process any more: its node has
        ended, or has all that it needs of the others."""
        with self._lock:
            self._cancelled = True
            if self._timer is not None:
                self._timer.cancel()

    def _end(self, cause: Cause) -> None:
        if self._pipe is not None:
            self._pipe.close(STUCK, failure(cause.node, Aborted(cause), None))
        os._exit(1)


def run_in_threads(
    build: str | Path,
    options: Options | None = None,
    *,
    interrupts: Callable[[], Sequence[float | None]] = tuple,
) -> Result:
    """Run all nodes of a build as threads of this process, over the memory channel.

    The same programs, executor and protocol as with processes. Raises the root cause.
    After an interrupt a thread that is stuck outside the channel is left behind.

    `interrupts` gives an entry for each interrupt so far: the seconds in which the nodes
    have to stop, or None for no limit. After the first all nodes stop after the same
    step and save, without a last evaluation; KeyboardInterrupt says why where they
    cannot: no step was begun, they took longer, or there was a second interrupt.
    """
    from placer.channel.memory import MemoryHub

    folder = Path(build)
    plan = read_plan(folder)
    options = options or Options()
    hub = MemoryHub([n.name for n in plan.nodes], deadline=options.deadline)
    load = _once_each()

    executions = [
        Execution(plan, folder, node, hub.channel(node.name), options, nobody)
        for node in plan.nodes
    ]

    def one(execution: Execution) -> Result | None:
        try:
            with in_thread(execution.me.name):
                return _attempt(execution, load)
        finally:
            execution.channel.close()

    reserve(plan.nodes, options.emulate or plan.emulate, alone=False)
    runs = [_in_thread(partial(one, x), x.me.name) for x in executions]
    stop = _Stop(executions[0])
    try:
        # A signal is heeded by this thread alone, and only when it wakes.
        while wait(runs, timeout=0.5).not_done:
            stop.heed(interrupts())
    except BaseException as error:
        hub.channel(plan.control).abort(Cause("", "", describe(error)))
        wait(runs, timeout=INTERRUPTED)
        raise
    errors = [run.exception() for run in runs]
    failed = [error for error in errors if error is not None]
    if failed:
        raise next((e for e in failed if not isinstance(e, Aborted)), failed[0])
    result = runs[0].result()
    assert result is not None
    return result


@dataclass(slots=True)
class _Stop:
    """Stops a run in threads after a step, once it is interrupted."""

    control: Execution
    asked: float | None = None

    def heed(self, interrupts: Sequence[float | None]) -> None:
        """Take note of those there were; KeyboardInterrupt to end the run at once."""
        if not interrupts:
            return
        if len(interrupts) > 1:
            raise KeyboardInterrupt("nothing was saved: there was a second signal")
        if self.asked is None:
            if self.control.step == 0:
                raise KeyboardInterrupt("nothing was saved: there was no step yet")
            self.asked = time.monotonic()
            self.control.stopping.request()
            nobody({"event": "warning", "message": STOPPING})
        grace = interrupts[0]
        late = grace is not None and time.monotonic() - self.asked > grace
        if late and self.control.state not in ("saving", "writing", "done"):
            raise KeyboardInterrupt(
                f"nothing was saved: the nodes did not stop within {grace:g} s"
            )


def _once_each() -> Load:
    """Loads a program for the first of the threads that run it. The others have the
    same functions then, which JAX compiles once."""
    lock = threading.Lock()
    loaded: dict[str, Hooks] = {}

    def load(folder: Path, plan: Plan, node: Node) -> Hooks:
        with lock:
            if node.program not in loaded:
                loaded[node.program] = load_program(folder, plan, node)
            return loaded[node.program]

    return load


def _in_thread(call: Callable[[], Result | None], node: str) -> Future[Result | None]:
    """Call in a thread that does not keep the process from ending."""
    future: Future[Result | None] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=f"placer {node}", daemon=True).start()
    return future


def main(file: str, *hooks: Hook) -> None:
    """Be the node whose folder this file is in: just what `placer run` does, options
    too. That command checks the hash of the node's program and loads its hooks."""
    program = Path(file).resolve()
    kind, _, number = program.parent.name.rpartition("-")
    folder, node = str(program.parent.parent), f"{kind}:{number}"
    sys.argv = ["placer", "run", folder, "--node", node, *sys.argv[1:]]
    # As `python -m`: the runtime stands below the command line and imports none of it.
    runpy.run_module("placer.command", run_name="__main__")


def _attempt(execution: Execution, load: Load, *, keep: bool = False) -> Result | None:
    """Execute the node's program; whatever goes wrong here becomes the root cause.

    With `keep` the process keeps what JAX compiles. Threads would read from each other
    what is half written, and the process is not theirs to set up.
    """
    channel = execution.channel
    try:
        if keep:
            bound()
        if keep and execution.me.computes:
            keep_compiled()
        hooks = load(execution.folder, execution.plan, execution.me)
        return execute(execution, *hooks)
    except Aborted:
        raise
    except BaseException as error:
        what = describe(error)
        line = culprit(execution.folder, execution.me.program, error.__traceback__)
        if line is not None and isinstance(error, Exception):
            what += f"\n  {line}"
        cause = Cause(channel.node, execution.where, what)
        if isinstance(error, DivergedError):  # which is not this node's fault
            cause = Cause("", "", what)
        channel.abort(cause)
        if isinstance(error, PlacerError | KeyboardInterrupt):
            raise
        raise RunError(str(cause)) from error


def describe(error: BaseException) -> str:
    """What happened, in a line or two."""
    if isinstance(error, PlacerError):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        return "it was interrupted"
    if hint := missing_package(error):
        return f"{type(error).__name__}: {error}\n  hint: {hint}"
    said, within, trace = f"{type(error).__name__}: {error}".partition(TRACEBACK)
    if within:  # XLA tells of a callback with all that Python said of it
        said += next(filter(_RAISED, reversed(trace.splitlines())), "").strip()
    return said.strip()


TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"[A-Za-z_][\w.]*: ").match
"""The line of a traceback that says what was raised."""


def failure(
    node: str, error: BaseException, channel: Channel | None
) -> dict[str, object]:
    """The event of a node that failed. `root` is false when it only heard of it."""
    cause = Cause(node, "", describe(error))
    if isinstance(error, Aborted):
        cause = error.cause
    elif channel is not None and channel.aborted is not None:
        cause = channel.aborted  # this node's own: it says where
    return {
        "event": "failed",
        "cause": {"node": cause.node, "where": cause.where, "what": cause.what},
        "root": not isinstance(error, Aborted),
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


class _beating:  # noqa: N801 - a context manager, used as a verb
    """Reports a node's state twice a second while it runs."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._end = threading.Event()
        self._thread = threading.Thread(
            target=self._beat, name="placer report", daemon=True
        )

    def __enter__(self) -> None:
        if self._execution.report is not nobody:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self) -> None:
        while not self._end.wait(BEAT):
            self._execution.tell()


__all__ = [
    "Options",
    "Report",
    "Result",
    "endpoints_of",
    "main",
    "run",
    "run_in_threads",
]
