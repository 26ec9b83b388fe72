"""Watches the processes of a run: reads their events, waits for their ends, ends
them."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from placer.errors import RunError
from placer.launcher import cause
from placer.launcher.cause import Failure
from placer.launcher.node_events import (
    Event,
    NodeFailure,
    NodeWarning,
    RunResult,
    State,
    read_event,
)
from placer.launcher.node_process import NodeProcess
from placer.launcher.signals import Signals
from placer.runtime.run.events import READING, STOPPING

Watch = Callable[[Event], None]

# Peers report a lost node after 8 s without a heartbeat. With the next three limits,
# all processes of a run have ended within 20 s after any failure.
ROOT_REPORT_GRACE = 3.0
"""Seconds for a node to report the root cause after the first report of a failure."""
PEER_EXIT_GRACE = 1.5
"""Seconds for the other nodes to end by themselves after the root cause is known."""
TERM_GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL."""
EXIT_GRACE = 30.0
"""Seconds for the processes to end after the last barrier."""
FROZEN_GRACE = 8.0
"""Seconds in which a stopped process must continue if the result depends on it."""
POLL_INTERVAL = 0.5
"""Seconds between two checks for stopped processes; a stop makes no event."""


STATES_BEFORE_FIRST_STEP = ("joining", READING, "compiling")
"""The states of a node before its first step."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run, and warnings about failures that did not affect it."""

    result: RunResult
    warnings: tuple[str, ...]


def supervise(
    children: Sequence[NodeProcess],
    watch: Watch,
    signals: Signals,
    *,
    params_file: Path | None = None,
) -> Outcome:
    """Watch the processes until all have ended, and return the outcome of the run.

    `watch` is called with each event. The first child is the control node. If the run
    saves its parameters to `params_file`, a first signal stops it after a step.
    Whatever is raised, no process is left running. Raises RunError with the root cause
    of a failure, KeyboardInterrupt or SystemExit after a signal to the launcher.

    A node that reports "writing" or "done" has passed the last barrier. By then every
    node has done its part; only the control node still writes results. A process that
    fails after that causes a warning if there is a result, and no error.
    """
    with selectors.DefaultSelector() as selector:
        run = _Supervisor(children, watch, signals, selector, params_file)
        try:
            run.watch_processes()
        finally:
            run.end_processes()
    signals.raise_first(run.interruption_text())
    return run.outcome()


@dataclass(slots=True)
class _Supervisor:
    """The state of a run that is watched.

    `failures` happened before the last barrier and `late_failures` after it; `states`
    has the last reported state of each node, and `reporters` are the nodes that have
    reported a failure. `handled_signals` counts the received signals that have had
    their effect.
    """

    children: Sequence[NodeProcess]
    watch: Watch
    signals: Signals
    selector: selectors.BaseSelector
    params_file: Path | None
    failures: list[Failure] = field(default_factory=list)
    late_failures: list[Failure] = field(default_factory=list)
    result: RunResult | None = None
    states: dict[str, str] = field(default_factory=dict)
    reporters: set[str] = field(default_factory=set)
    frozen_nodes: set[str] = field(default_factory=set)
    ending: bool = False
    handled_signals: int = 0

    def __post_init__(self) -> None:
        self.selector.register(self.signals.wake, selectors.EVENT_READ, None)
        for child in self.children:
            for fd in (child.report_fd, child.pidfd):
                self.selector.register(fd, selectors.EVENT_READ, child)

    @property
    def running(self) -> list[NodeProcess]:
        return [child for child in self.children if child.running]

    def watch_processes(self) -> None:
        """Watch until all processes have ended, or there is a reason to end them."""
        self._wait(
            None,
            lambda: bool(
                self.failures or self._past_last_barrier or self._has_new_signal
            ),
        )
        if (
            self._has_new_signal
            and self.params_file
            and self._has_started
            and not self.failures
        ):
            self._wait_for_saving()
        if self._has_new_signal:
            return
        if self.failures and not self._past_last_barrier:
            self._wait_for_root_cause()
        if self._past_last_barrier and not self._has_new_signal:
            # One node has reported that it passed the last barrier. Failures received
            # before that report happened after the barrier too, so they are late ones.
            self.late_failures, self.failures = (
                [*self.failures, *self.late_failures],
                [],
            )
            self._wait_for_exits()

    def _wait_for_saving(self) -> None:
        """Stop all nodes after the same step, and wait until they have saved.

        Return early if another signal comes or the nodes take too long to stop. There
        is no limit for the saving itself.
        """
        control = self.children[0]
        self.handled_signals += 1
        control.order_stop()
        self.watch(NodeWarning(STOPPING))

        def is_over() -> bool:
            return bool(
                self.failures or self._past_last_barrier or self._has_new_signal
            )

        def is_saving() -> bool:
            return self.states.get(control.node) == "saving"

        grace = self.signals.save_timeouts[0]
        until = None if grace is None else time.monotonic() + grace
        self._wait(until, lambda: is_over() or is_saving())
        if is_saving():
            self._wait(None, is_over)

    def _wait_for_exits(self) -> None:
        """Wait for the processes to end by themselves.

        There is no limit while the result is pending, otherwise the limit is a grace
        period. Processes that run longer are added to the late failures.
        """
        since = time.monotonic()
        while self.running:
            if (
                self._has_new_signal
                and self.params_file
                and not self.result
                and not self.handled_signals
            ):
                self.handled_signals += 1  # the control node is saving already
            if self._has_new_signal:
                return
            if self._are_all_frozen:
                grace = 0.0 if self.result else FROZEN_GRACE
            elif self._is_result_pending:
                since, grace = time.monotonic(), EXIT_GRACE
            else:
                grace = EXIT_GRACE
            left = since + grace - time.monotonic()
            if left <= 0:
                self.late_failures += [
                    cause.failure_from_delay(
                        child, None if child.is_stopped() else grace
                    )
                    for child in self.running
                ]
                return
            until = time.monotonic() + min(POLL_INTERVAL, left)
            self._wait(until, lambda: self._has_new_signal)

    def _wait_for_root_cause(self) -> None:
        """Wait for the root cause, then for the other processes to end by
        themselves."""

        def is_over() -> bool:
            return (
                self._has_new_signal or self._are_all_frozen or self._past_last_barrier
            )

        self._wait(
            time.monotonic() + ROOT_REPORT_GRACE,
            lambda: is_over() or self._is_root_known,
        )
        self._wait(time.monotonic() + PEER_EXIT_GRACE, is_over)

    def end_processes(self) -> None:
        """End all processes: SIGTERM, then SIGKILL; a frozen one gets SIGKILL at
        once."""
        self.ending = True
        self.frozen_nodes = {child.node for child in self.running if child.is_stopped()}
        for child in self.running:
            stopped = child.node in self.frozen_nodes
            child.signal(signal.SIGKILL if stopped else signal.SIGTERM)
        before = len(self.signals.received)
        self._wait(
            time.monotonic() + TERM_GRACE, lambda: len(self.signals.received) > before
        )
        for child in self.running:
            child.signal(signal.SIGKILL)
        self._wait(None, lambda: False)

    def interruption_text(self) -> str:
        """Return the text for a run that a signal has ended.

        It says whether the parameters were saved, and whether the run had failed
        before.
        """
        if self.params_file is None:
            failed = None if self.result else cause.choose_root_cause(self.failures)
            return "" if failed is None else f"the run had failed: {failed.text}"
        if self.result:
            steps = self.result.steps
            return (
                f"stopped after step {steps}; the parameters are in {self.params_file}"
            )
        failure = cause.choose_root_cause([*self.failures, *self.late_failures])
        if failure is not None:
            why = failure.text
        elif not self._has_started:
            why = "the first step had not finished"
        elif len(self.signals.received) > 1:
            why = "there was a second signal"
        elif self._past_last_barrier:
            why = "the file was not completely written"
        else:
            why = f"the nodes did not stop within {self.signals.save_timeouts[0]:g} s"
        return f"nothing was saved: {why}"

    def outcome(self) -> Outcome:
        """Return the result with warnings, or raise RunError with the root cause."""
        failures = [*self.failures, *self.late_failures]
        if self.result is None:
            failure = cause.choose_root_cause(failures)
            if failure is None:
                raise RunError("all nodes have ended, and none reported a result")
            raise cause.run_error(
                failure, self._log_of(failure), frozen=self._is_frozen(failure)
            )
        shown = [failure for failure in failures if failure.first_hand] or failures[:1]
        warnings = (
            cause.warning_text(f, self._log_of(f), frozen=self._is_frozen(f))
            for f in shown
        )
        return Outcome(self.result, tuple(warnings))

    def _is_frozen(self, failure: Failure) -> bool:
        return failure.node in self.frozen_nodes

    def _log_of(self, failure: Failure) -> Path | None:
        return next((c.log for c in self.children if c.node == failure.node), None)

    @property
    def _has_started(self) -> bool:
        return self.states.get(self.children[0].node) not in (
            None,
            *STATES_BEFORE_FIRST_STEP,
        )

    @property
    def _has_new_signal(self) -> bool:
        """Whether a signal was received that is not handled yet."""
        return len(self.signals.received) > self.handled_signals

    @property
    def _past_last_barrier(self) -> bool:
        """Whether all nodes have passed the last barrier, after which none needs
        another."""
        passed = {"writing", "done"}
        return self.result is not None or not passed.isdisjoint(self.states.values())

    @property
    def _is_result_pending(self) -> bool:
        """Whether there is no result, but a running process that may still produce
        it."""
        return self.result is None and any(
            self.states.get(child.node) != "done"
            and child.node not in self.reporters
            and not child.is_stopped()
            for child in self.running
        )

    @property
    def _is_root_known(self) -> bool:
        return any(failure.first_hand for failure in self.failures)

    @property
    def _are_all_frozen(self) -> bool:
        return all(child.is_stopped() for child in self.running)

    def _wait(self, until: float | None, enough: Callable[[], bool]) -> None:
        """Handle events until no process runs, `enough()` is true, or the time is
        up."""
        while self.running and not enough():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            for key, _ in self.selector.select(left):
                if key.data is None:
                    os.read(self.signals.wake, 512)
                elif key.fd == key.data.report_fd:
                    self._read_reports(key.data)
                elif key.data.running:
                    self._handle_exit(key.data)

    def _read_reports(self, child: NodeProcess) -> bool:
        """Read once from a process and handle the events; return if there may be
        more."""
        lines, more = child.read_lines()
        for line in lines:
            if not self.ending:
                self._handle_event(child, read_event(child.node, line))
        if child.reports_ended and child.report_fd in self.selector.get_map():
            self.selector.unregister(child.report_fd)
        return more

    def _handle_event(self, child: NodeProcess, event: Event) -> None:
        match event:
            case NodeFailure():
                self.reporters.add(child.node)
                self._add_failure(cause.failure_from_report(event))
            case RunResult():
                self.result = event
            case State():
                self.states[child.node] = event.state
        self.watch(event)

    def _handle_exit(self, child: NodeProcess) -> None:
        # Read its last events first: if it reported a failure, its end is not another.
        while self._read_reports(child):
            pass
        self.selector.unregister(child.pidfd)
        child.reap()
        quiet = child.node not in self.reporters and not self.ending
        early = self.states.get(child.node) != "done" and self.result is None
        if quiet and (child.exit_status != 0 or early):
            self._add_failure(cause.failure_from_exit(child))

    def _add_failure(self, failure: Failure) -> None:
        (self.late_failures if self._past_last_barrier else self.failures).append(
            failure
        )
