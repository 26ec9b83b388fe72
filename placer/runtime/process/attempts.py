"""Runs the nodes of a process through the attempts of a run.

A run is a sequence of attempts. When a node fails, every other process leaves the attempt: it
closes its session, drops its tables, and joins the next attempt. It keeps its imports, its
compiled functions and its rows, which no step changes. The failed process ends, and is
started again. Without `--restarts`, the first failure ends the run.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from placer.channel.incarnations import Incarnations
from placer.channel.interface import Aborted, Cause
from placer.channel.keys import RunKey
from placer.channel.session import Session
from placer.channel.thread_channel import thread_channels
from placer.plan.plan import NodePlan, Plan, neighbours
from placer.runtime.callbacks.event_queue import EventQueue
from placer.runtime.callbacks.event_relay import EventRelay, RelayedReport
from placer.runtime.control.events import (
    WAITING_IN_STREAM,
    Event,
    Left,
    NodeFailure,
    Report,
)
from placer.runtime.control.execution import Execution
from placer.runtime.control.failure import failure_event
from placer.runtime.control.options import Options
from placer.runtime.control.result import Outcome
from placer.runtime.control.shared_rows import SharedRows
from placer.runtime.control.wait_samples import SAMPLE_INTERVAL
from placer.runtime.node.program_file import Programs
from placer.runtime.prediction.request import PredictionRequest
from placer.runtime.process.nodes import run_nodes
from placer.runtime.process.peer_policy import watch_peers
from placer.runtime.saving.beginning import note_failure
from placer.system.owned_threads import END_LIMIT

IDLE_INTERVAL = 2.0
"""Seconds between two reports of a node's state while it waits for a file. The launcher takes a
node whose reports are more than 3 s old for frozen."""
STATE_INTERVAL = 0.5
"""Seconds between two reports of a node's state."""
EXIT_TIMEOUT = 10.0
"""Seconds until a process is forced to exit after the run has failed on another node. If the
run goes on, a process has `--lost-after` seconds to leave the attempt."""


@dataclass(slots=True)
class NodeRun:
    """The part of a process in a run, over all attempts.

    Attributes:
        node: the name of the process.
        nodes: the nodes of the process.
        addresses: the address of each process.
        key: the key of the run, if it has one.
        bind: the address to listen on, if other nodes use another address.
        paced: whether the steps wait for callbacks in the launcher.
        relays: whether the control node reports the events of all nodes.
        id: the id of the run; empty without `--restarts`.
        report: a function that receives the events of the nodes.
        pipe: the queue of events to the launcher, if there is one.
        relayed: the report of a node that relays its events, if it does.
        on_attempt: called with the first execution of each attempt.
        on_end: called when the last attempt has ended, before its channel is closed.
        number: the number of the attempt.
        has_begun: whether this process has begun an attempt.
        continues: whether the run had trained before this process started.
        channel: the session of the attempt.
        execution: the first execution of the attempt.
    """

    plan: Plan
    folder: Path
    node: str
    nodes: Sequence[NodePlan]
    options: Options
    addresses: dict[str, str]
    key: RunKey | None
    bind: str | None
    paced: bool
    relays: bool
    id: str
    report: Report
    pipe: EventQueue | None
    relayed: RelayedReport | None = None
    on_attempt: list[Callable[[Execution], object]] = field(default_factory=list)
    on_end: Callable[[], object] = lambda: None
    number: int = 1
    has_begun: bool = False
    continues: bool = False
    channel: Session | None = None
    execution: Execution | None = None
    incarnations: Incarnations = field(default_factory=Incarnations)
    rows: SharedRows = field(default_factory=SharedRows)
    warned: set[str] = field(default_factory=set)
    programs: Programs = field(init=False)

    def __post_init__(self) -> None:
        self.programs = Programs(self.folder, self.plan)

    def run(self, prediction: PredictionRequest | None) -> Outcome | None:
        """Run the attempts until one ends the run; return its result.

        Raises the errors of `entry_point.run`.
        """
        while True:
            try:
                return self._run_attempt(prediction)
            except Aborted as error:
                if self.channel is None or self._ends_run(error.cause):
                    raise
                newer = self.channel.newer_attempt
            # The error refers to the frames that hold the tables.
            self.channel = self.execution = None
            gc.collect()
            self.rows.drop_failed()
            self.number = max(self.number + 1, newer)

    def _ends_run(self, cause: Cause) -> bool:
        """Whether a failure ends the run for this process."""
        is_replaced = self.channel is not None and self.channel.is_replaced
        return cause.is_final or is_replaced or not self.options.restarts

    def _event(self, error: BaseException) -> Event:
        attempt = self.number if self.options.restarts else 0
        event = failure_event(self.node, error, self.channel, attempt)
        if self.channel is None and attempt > 1 and isinstance(event, NodeFailure):
            # Without a session, no error of the program; the process is started again.
            cause = replace(event.cause, is_final=False)
            return Left(self.node, attempt, cause, event.root, event.message)
        return event

    def move(self, node: str, address: str, *, replaced: bool = False) -> None:
        """Use another address of a node, in this attempt and in later ones. If its process is
        `replaced`, this attempt is over."""
        self.addresses[node] = address
        if replaced:
            self.incarnations.retire(node, address)
        if self.channel is not None:
            self.channel.move(node, address, replaced=replaced)

    def exit_without_launcher(self) -> None:
        """End this process, because its launcher has ended, or its connection to a launcher on
        another machine, which then starts the node again."""
        if self.channel is not None:
            goes_on = self.relays and self.options.restarts > 0
            what = "has lost its launcher" if goes_on else "its launcher has ended"
            cause = Cause(self.node, "", what, is_final=not goes_on)
            self.channel.abort(cause)
        os._exit(1)

    def _run_attempt(self, prediction: PredictionRequest | None) -> Outcome | None:
        plan, options = self.plan, self.options
        self.has_begun = True
        is_control, relaying = self.nodes[0].name == plan.control, None
        reported: list[BaseException] = []

        def report_failure(error: BaseException) -> None:
            if error not in reported:
                reported.append(error)
                self.report(self._event(error))

        watchdog = _Watchdog(self._exit_after_failure)
        goes_on = False
        try:
            channel = self.channel = Session(
                self.node,
                self.addresses,
                "placer" if self.key is None else self.key.derive("job").hex(),
                build=plan.digest,
                key=self.key,
                encrypt=not options.insecure_network,
                bind=self.bind,
                transport=options.transport,
                peers=neighbours(plan, self.node),
                nodes=[each.name for each in plan.nodes],
                attempt=self.number,
                incarnations=self.incarnations,
                deadline=options.deadline,
                join_timeout=options.join_timeout,
                lost_after=options.lost_after,
            )
            channel.continues = options.restarts > 0
            channel.on_abort = lambda cause: watchdog.begin(
                EXIT_TIMEOUT if self._ends_run(cause) else options.lost_after
            )
            for node, address in self.addresses.items():  # may have changed meanwhile
                channel.move(node, address)
            channels = thread_channels(channel)
            executions = [
                Execution(
                    plan,
                    self.folder,
                    each,
                    channels[each.name],
                    options,
                    self.report,
                    attempt=self.number,
                    continues=self.continues,
                    run=self.id if each.name == plan.control else "",
                    shared_rows=self.rows,
                    warned=self.warned,
                    paced=self.paced,
                )
                for each in self.nodes
            ]
            execution = self.execution = executions[0]
            execution.on_settled = watchdog.end
            if self.relays and is_control:
                relaying = EventRelay(execution.channel, self.report)
                execution.on_joined = relaying.begin
            if self.relayed is not None:
                execution.on_joined = partial(
                    self.relayed.begin, execution.channel, plan.control
                )
                execution.on_last_barrier = self.relayed.end
            watch_peers(executions, channel)
            for call in self.on_attempt:
                call(execution)
            with ExitStack() as contexts:
                if self.pipe is not None:
                    contexts.enter_context(_states_reported(executions))
                result = run_nodes(
                    executions, self.programs, prediction, report_failure
                )
            if relaying is not None and prediction is None:
                relaying.close()
            return result
        except BaseException as error:
            report_failure(error)
            if self.channel is not None and self.channel.aborted is not None:
                cause = self.channel.aborted
                goes_on = isinstance(error, Aborted) and not self._ends_run(cause)
                if is_control and self.execution is not None:
                    note_failure(self.execution, cause)
            raise
        finally:
            if not goes_on:
                self.on_end()
            if self.channel is not None:
                self.channel.close()
            watchdog.join()
            if relaying is not None:
                relaying.drop()
            if self.relayed is not None:
                self.relayed.close()

    def _exit_after_failure(self) -> None:
        # The compute thread is stuck outside the channel, such as in the code of a source.
        # In the channel it would have raised `Aborted`.
        channel = self.channel
        if channel is not None and channel.aborted is not None:
            error = Aborted(channel.aborted)
            if self.pipe is not None:
                self.pipe.close(EXIT_TIMEOUT, self._event(error))
            else:
                print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(1)


class _Watchdog:
    """Calls a function some time after `begin`, unless `end` comes first."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._is_ended = False

    def begin(self, seconds: float) -> None:
        """Start the time, once. Safe to call from any thread."""
        with self._lock:
            if self._timer is None and not self._is_ended:
                self._timer = threading.Timer(seconds, self._call)
                self._timer.daemon = True
                self._timer.start()

    def end(self) -> None:
        """Stop the time for good. Safe to call from any thread."""
        with self._lock:
            self._is_ended = True
            if self._timer is not None:
                self._timer.cancel()

    def join(self) -> None:
        """Stop the time, and wait for its thread."""
        self.end()
        if self._timer is not None:
            self._timer.join(END_LIMIT)


@contextmanager
def _states_reported(executions: Sequence[Execution]) -> Iterator[None]:
    end = threading.Event()

    def report() -> None:
        due, waits = time.monotonic() + STATE_INTERVAL, False
        while not end.wait(STATE_INTERVAL if waits else SAMPLE_INTERVAL):
            now = time.monotonic()
            waits = all(each.state in WAITING_IN_STREAM for each in executions)
            for execution in executions:
                execution.sample_waits()
                if now >= due:
                    execution.report_state()
            if now >= due:
                due = now + (IDLE_INTERVAL if waits else STATE_INTERVAL)

    thread = threading.Thread(target=report, name="placer report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
