"""Watches the processes of a run: reads their events, waits for them, and ends them."""

from __future__ import annotations

import dataclasses
import os
import selectors
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

from msgspec.structs import replace

from placer.errors import RunError
from placer.launcher import cause
from placer.launcher.absent import NodesLost
from placer.launcher.cause import Failure
from placer.launcher.frozen import FrozenNodes, describe
from placer.launcher.machines import Reaction
from placer.launcher.restarts import Restarts
from placer.launcher.watched_node import WatchedNode
from placer.place.node_kinds import NodeId
from placer.runtime.callbacks.callbacks import MAX_PENDING, CallbackQueue
from placer.runtime.control.events import (
    AFTER_LAST_BARRIER,
    CONNECTING,
    DONE,
    IMPORTING,
    Event,
    Left,
    NodeFailure,
    NodeWarning,
    SignalReceived,
    State,
    Step,
    is_cut,
    read_event,
)
from placer.runtime.control.launcher_orders import address_order
from placer.runtime.control.result import Outcome, PredictionResult, Result
from placer.runtime.signals.interruption import Interruption
from placer.runtime.signals.signals import Signals
from placer.system.memory.collection import begin_collection

Watch = Callable[[Event], None]

ROOT_REPORT_GRACE = 3.0
"""Seconds for a node to report the root cause after the first report of a failure."""
ENGINE_REPORT_GRACE = 12.0
"""The same for an engine, which may notice later than the other nodes that a machine is lost."""
PEER_EXIT_GRACE = 1.5
"""Seconds for the other nodes to end on their own once the root cause is known."""
EXIT_GRACE = 30.0
"""Seconds for the processes to end after the last barrier."""
FROZEN_GRACE = 8.0
"""Seconds in which a frozen process must continue if the result depends on it."""
LATE_END = 3.0
"""Seconds after which the user is told that a cancelled job has not ended."""
KILL_LIMIT = 30.0
"""Seconds in which the system must end a killed process. A process that waits for a
disk or a network drive may never end."""
POLL_INTERVAL = 0.25
"""Seconds between two checks for expired limits and for frozen processes. Neither of
them wakes the launcher by an event."""


class Phase(Enum):
    """What the launcher waits for next."""

    RUNNING = auto()  # waits for the last barrier
    FAILED = auto()  # waits for the root cause of a failure
    FAILURE_KNOWN = auto()  # waits for processes to notice the failure and end
    FINISHING = auto()  # waits for processes to end after the last barrier
    ENDING = auto()  # waits for processes that the launcher has killed


def supervise(
    children: list[WatchedNode],
    watch: Watch,
    signals: Signals,
    interruption: Interruption,
    calls: CallbackQueue,
    restarts: Restarts | None = None,
) -> Outcome:
    """Watch the processes until all have ended, and return the result of the run.

    When this function returns or raises, no process is left running.

    A node that reports "writing" or "done" has passed the last barrier. By then every
    node has done its part; only the control node still writes results. If a process fails
    after that and the run has a result, the failure is only a warning.

    Args:
        children: the nodes; the first is the control node.
        watch: called with each event.
        signals: the signals that this process received.
        interruption: decides how the run reacts to signals.
        calls: the queue of steps for callbacks. They are called until they have received
            all steps of a run with a result, or until the run fails.
        restarts: starts the processes of `children` again that have ended; None if the first
            failure ends the run.

    Raises:
        RunError: with the root cause of a failure; a NodesLost, if the run may go on with
            fewer nodes.
        KeyboardInterrupt, SystemExit: after a signal to the launcher or to a node.
    """
    begin_collection()
    with selectors.DefaultSelector() as selector:
        run = _Supervisor(
            children, watch, signals, selector, interruption, calls, restarts
        )
        try:
            run.watch_processes()
        except KeyboardInterrupt:  # A signal interrupted a callback.
            if not signals.received:
                raise
            run.obey_signals()
        finally:
            run.end_processes()
    run.call_remaining()
    if signals.received:
        failure = cause.choose_root_cause(run.failures)
        result = run.result
        steps = result.rows if isinstance(result, PredictionResult) else None
        if isinstance(result, Result):
            steps = result.steps
        # A node that ended the run because of a signal is not another cause.
        is_other = failure is not None and not failure.is_interruption
        what = failure.text if failure is not None and is_other else None
        signals.raise_first(interruption.outcome(steps, what))
    return run.outcome()


@dataclass(slots=True)
class _Supervisor:
    """The state of a watched run.

    Attributes:
        states: the last reported state of each node.
        reporters: the nodes that have reported a failure.
        joined: the processes that have joined the others since they were started.
        stuck: the processes that were killed because they did not leave a failed attempt.
        stops: how many attempts the run had begun when its control node was asked to stop; 0
            if it was not asked.
        since: the time from which the limits of the phase count.
    """

    children: list[WatchedNode]
    watch: Watch
    signals: Signals
    selector: selectors.BaseSelector
    interruption: Interruption
    calls: CallbackQueue
    restarts: Restarts | None
    phase: Phase = Phase.RUNNING
    since: float = 0.0
    failures: list[Failure] = field(default_factory=list)
    result: Outcome | None = None
    states: dict[str, State] = field(default_factory=dict)
    reporters: set[str] = field(default_factory=set)
    frozen: FrozenNodes = field(default_factory=FrozenNodes)
    is_behind: bool = False
    joined: set[str] = field(default_factory=set)
    stuck: set[str] = field(default_factory=set)
    stops: int = 0

    def __post_init__(self) -> None:
        self.calls.on_stop = self._order_stop
        if self.calls.has_stopped:  # the nodes of an earlier build were asked
            self.stops = 1
        if self.restarts is not None:
            self.joined = self.restarts.joined
        self.calls.on_called = self._order_step
        least = 2 if self.interruption.saves else 1
        self.calls.guard = partial(self.signals.raised_from, least)
        self._register(self.signals.wake, lambda: os.read(self.signals.wake, 512))
        for child in self.children:
            self._watch_process(child)

    def _register(self, fd: int, call: Callable[[], object]) -> None:
        """Call a function when a descriptor is readable."""
        self.selector.register(fd, selectors.EVENT_READ, call)

    def _watch_process(self, child: WatchedNode) -> None:
        self._register(child.report_fd, partial(self._read_reports, child))
        self._register(child.pidfd, partial(self._handle_exit, child))

    def _order_stop(self) -> None:
        restarts = self.restarts
        self.stops = 1 if restarts is None else restarts.begun
        if restarts is not None and restarts.repeats:
            self.stops -= 1  # It is ordered at the furthest step.
        else:
            self.children[0].order_stop()

    def _order_step(self) -> None:
        """Report a step to the control node, or warn that nodes do not wait for
        callbacks."""
        if self.children[0].order_step() or not self.calls.is_full or self.is_behind:
            return
        self.is_behind = True
        self.watch(
            NodeWarning(
                f"the callbacks are more than {MAX_PENDING} steps behind, and "
                f"{self.children[0].job} does not wait for them: their return "
                "values take effect late"
            )
        )

    @property
    def _goes_on(self) -> bool:
        starts = self.restarts is not None and self.restarts.has_due
        return self.phase is not Phase.ENDING and bool(self.running or starts)

    @property
    def _recovers(self) -> bool:
        """Whether the nodes go back after a failure, or repeat steps before they stop."""
        restarts = self.restarts
        if restarts is None:
            return False
        return restarts.failing is not None or 0 < self.stops < restarts.begun

    @property
    def running(self) -> list[WatchedNode]:
        return [child for child in self.children if child.running]

    def watch_processes(self) -> None:
        while self._goes_on:
            self._handle_events(0.0 if self.calls.has_steps else POLL_INTERVAL)
            self.obey_signals()
            self._advance()
            calls = self.phase in (Phase.RUNNING, Phase.FINISHING)
            if calls:
                self.calls.call_next()
            # Only a few steps are left until all nodes have stopped, and saving waits for
            # them.
            stops = self.interruption.stopping_since is not None
            self._read_control(pause=calls and self.calls.is_full and not stops)

    def call_remaining(self) -> None:
        """Pass the last steps of a run with a result to the callbacks, until another
        signal."""
        before = len(self.signals.received)
        try:
            while self.result is not None and len(self.signals.received) == before:
                if not self.calls.call_next():
                    return
        except KeyboardInterrupt:
            if not self.signals.received:
                raise

    def _read_control(self, *, pause: bool) -> None:
        """Read events of the control node, or pause while many steps wait for callbacks."""
        control = self.children[0]
        is_read = control.report_fd in self.selector.get_map()
        if is_read and pause:
            self.selector.unregister(control.report_fd)
        elif not (is_read or control.reports_ended or pause):
            call = partial(self._read_reports, control)
            self.selector.register(control.report_fd, selectors.EVENT_READ, call)

    def obey_signals(self) -> None:
        self.interruption.obey(
            len(self.signals.received),
            self._state_of(self.children[0]) or IMPORTING,
            self.watch,
            stop=self._order_stop,
            end=lambda: self._enter(Phase.ENDING),
            can_save=self.result is None
            and (self._past_last_barrier or not self.failures),
            recovers=self._recovers,
        )

    def _advance(self) -> None:
        """Enter the next phase if an event or an expired limit requires it."""
        elapsed = time.monotonic() - self.since
        match self.phase:
            case Phase.ENDING:
                pass
            case Phase.FINISHING if self._is_left_alone:
                self._enter(Phase.ENDING)
            case Phase.FINISHING:
                self._check_exits()
            case _ if self._past_last_barrier:
                # One node has reported that it passed the last barrier. Failures received
                # before that report happened after the barrier as well, so they do not
                # end the run.
                self._enter(Phase.FINISHING)
            case Phase.RUNNING if self.failures:
                self._enter(Phase.FAILED)
            case Phase.RUNNING:
                if self.restarts is not None:
                    self._restart(self.restarts)
                if not self.interruption.has_steps:
                    for text in self.frozen.newly_named(self.running):
                        self.watch(NodeWarning(text))
            case Phase.FAILED | Phase.FAILURE_KNOWN if self._are_all_frozen:
                self._enter(Phase.ENDING)
            case Phase.FAILED if self._is_root_known or elapsed > self._report_grace:
                self._enter(Phase.FAILURE_KNOWN)
            case Phase.FAILURE_KNOWN if elapsed > PEER_EXIT_GRACE:
                self._enter(Phase.ENDING)

    def _restart(self, restarts: Restarts) -> None:
        """Start processes that have ended, and end those that cannot leave an attempt."""
        for event in restarts.news():
            self.watch(event)
        for text, ends_run in restarts.news_of_machines():
            if ends_run:
                self.failures.append(Failure("", text, True))
            else:
                self.watch(NodeWarning(text))
        for child in restarts.stuck(self.children):
            self.stuck.add(child.node)
            child.kill()
        self.failures += restarts.overdue()
        for node in restarts.due(time.monotonic()):
            index = [child.node for child in self.children].index(node)
            started = self.children[index] = restarts.start_again(self.children[index])
            self._watch_process(started)

    def _enter(self, phase: Phase) -> None:
        self.phase, self.since = phase, time.monotonic()

    def _check_exits(self) -> None:
        """End processes that run too long after the last barrier, unless the result is
        pending."""
        grace = EXIT_GRACE
        if self._are_all_frozen:
            grace = 0.0 if self.result else FROZEN_GRACE
        elif self._is_result_pending:
            self.since = time.monotonic()
        if time.monotonic() - self.since < grace:
            return
        delays = [(child, child.is_stopped()) for child in self.running]
        for child, is_frozen in sorted(delays, key=lambda each: not each[1]):
            seconds = None if is_frozen else grace
            self.failures.append(cause.failure_from_delay(child, seconds))
        self._enter(Phase.ENDING)

    def end_processes(self) -> None:
        """End all processes with SIGKILL; other signals would make a node stop and save."""
        self._enter(Phase.ENDING)
        self.frozen.look(self.running)
        for child in self.running:
            child.kill()
        # This also ends a thread that is blocked while it writes events.
        self._read_control(pause=False)
        before = self.signals.counts[""]
        is_said, raised = False, None
        while self.running:
            self._handle_events(POLL_INTERVAL)
            elapsed = time.monotonic() - self.since
            texts = [*self._leave()] if elapsed > KILL_LIMIT else []
            has_jobs = any(child.job for child in self.running)
            if elapsed > LATE_END and has_jobs and not is_said:
                is_said = True
                texts.append(self._waiting())
            for text in texts:
                try:
                    self.watch(NodeWarning(text))
                except BaseException as error:
                    raised = error
            if self.signals.counts[""] > before:
                for child in self.running:
                    child.abandon()
        if raised is not None:
            raise raised

    def _leave(self) -> Iterator[str]:
        """Stop waiting for processes of this machine, and yield messages for the user."""
        for child in self.running:
            if not child.job:  # For the job of an engine, the engine limits the wait.
                child.running = False
                yield (
                    f"{child.node} was killed, but its process has not ended: it "
                    "is blocked in the system, for example on a network drive "
                    "that does not answer"
                )

    def _waiting(self) -> str:
        jobs = ", ".join(sorted({child.job for child in self.running if child.job}))
        text = f"waits for the end of {jobs}; Ctrl-C stops waiting"
        failure = cause.choose_root_cause(self.failures)
        return text if failure is None else f"{failure.text}\n{text}"

    def outcome(self) -> Outcome:
        """Return the result with warnings, or raise RunError with the root cause."""
        if self.result is None:
            failure = cause.choose_root_cause(self.failures)
            if failure is None:
                raise RunError("all nodes have ended, but none reported a result")
            text = failure.text + self._details(failure)
            for node in sorted(self.frozen.names - {NodeId(failure.node).process}):
                text += f"\n  {describe(node)}"
            if how := self.interruption.how_to_continue:
                text += f"\n  {how}"
            restarts = self.restarts
            if restarts is not None and restarts.absent.lost:
                lost = restarts.absent.lost_of(self.children)
                raise NodesLost(text, lost, restarts)
            raise RunError(text)
        shown = [each for each in self.failures if each.first_hand] or self.failures[:1]
        when = "after the run had a complete result"
        warnings = [f"{each.text}, {when}{self._details(each)}" for each in shown]
        # All nodes may have ended for the same reason.
        warnings = [*self.result.warnings, *dict.fromkeys(warnings)]
        return replace(self.result, warnings=tuple(warnings), failed_late=bool(shown))

    def _details(self, failure: Failure) -> str:
        text = ""
        process = NodeId(failure.node).process
        if process in self.frozen.names:
            text += "\n  its process is frozen: a signal has stopped it"
        for child in self.children:
            if child.node == process:
                text += f"\n  host: {child.host}" if child.host else ""
                text += f"\n  log: {child.log}"
        return text

    @property
    def _past_last_barrier(self) -> bool:
        """True if all nodes have passed the last barrier, so no node needs another one."""
        states = [last.state for last in self.states.values()]
        return self.result is not None or any(s in AFTER_LAST_BARRIER for s in states)

    @property
    def _is_left_alone(self) -> bool:
        """True if a process has failed after the result, for which the others wait. All files
        are complete."""
        restarts = self.restarts
        if restarts is None or self.result is None:
            return False
        return restarts.has_due or bool(self.reporters)

    def _state_of(self, child: WatchedNode) -> str | None:
        last = self.states.get(child.node)
        return None if last is None else last.state

    @property
    def _is_result_pending(self) -> bool:
        """True if a running process may still produce the missing result."""
        return self.result is None and any(
            self._state_of(child) != DONE
            and child.node not in self.reporters
            and not child.is_stopped()
            for child in self.running
        )

    @property
    def _is_root_known(self) -> bool:
        return any(failure.first_hand for failure in self.failures)

    @property
    def _report_grace(self) -> float:
        is_of_engine = any(child.job for child in self.running)
        return ENGINE_REPORT_GRACE if is_of_engine else ROOT_REPORT_GRACE

    @property
    def _are_all_frozen(self) -> bool:
        return all(child.is_stopped() for child in self.running)

    def _handle_events(self, seconds: float | None) -> None:
        for key, _ in self.selector.select(seconds):
            key.data()

    def _read_reports(self, child: WatchedNode) -> bool:
        """Read once and handle the events; return True if there may be more."""
        lines, more = child.read_lines()
        for line in lines:
            if self.phase is not Phase.ENDING and not is_cut(line):
                self._handle_event(child, read_event(child.node, line))
        if child.reports_ended and child.report_fd in self.selector.get_map():
            self.selector.unregister(child.report_fd)
        return more

    def _handle_event(self, child: WatchedNode, event: Event) -> None:
        self.interruption.note(event)
        match event:
            case Left():
                if self.restarts is not None and self.result is None:
                    failure = cause.failure_from_report(event)
                    joined = self.joined & {child.node for child in self.running}
                    self.restarts.note_left(event, failure, joined)
                if (
                    event.root
                    and self.restarts is not None
                    and self.restarts.is_guarded
                ):
                    # The guard starts the process again, which reports its states.
                    self.joined.discard(child.node)
                    self.states.pop(child.node, None)
                elif event.root:
                    self.reporters.add(child.node)
            case NodeFailure():
                self.reporters.add(child.node)
                failure = cause.failure_from_report(event)
                if self.restarts is not None:
                    failure = self.restarts.explain(failure)
                self.failures.append(failure)
            case Result() | PredictionResult():
                self.result = event
            case SignalReceived():
                self.signals.add(event.number, event.node)
            case State():
                # A relayed event may come from another process. All threads of a process
                # are in the same state, and the first one may be the control node.
                node = NodeId(event.node)
                if not node.thread:
                    self.states[node.process] = event
                if event.state not in (IMPORTING, CONNECTING):
                    self.joined.add(node.process)
        if self.restarts is None:
            self._pass_on(event)
            return
        furthest = self.restarts.furthest
        if isinstance(event, Result):
            for each in self.restarts.finish(event.steps):
                self._pass_on(each)
            event = self.result = replace(event, restarts=tuple(self.restarts.done))
        for each in self.restarts.pass_on(event):
            self._pass_on(each)
        is_repeated = isinstance(event, Step) and event.step <= furthest
        is_hidden = is_repeated and self.restarts.compares
        if is_hidden and self.calls.has_callbacks:
            self.children[0].order_step()
        caught_up = isinstance(event, Step) and event.step >= furthest
        if caught_up and 0 < self.stops < self.restarts.begun:
            self._order_stop()  # the attempt that was asked has failed

    def _pass_on(self, event: Event) -> None:
        self.watch(event)
        self.calls.add(event)

    def _handle_exit(self, child: WatchedNode) -> None:
        # Read the last events first: if the node reported a failure, its end is not a
        # second one.
        while self._read_reports(child):
            pass
        self.selector.unregister(child.pidfd)
        child.reap()
        quiet = child.node not in self.reporters and self.phase is not Phase.ENDING
        early = self._state_of(child) != DONE and self.result is None
        has_failed = child.exit_status != 0 or early
        if has_failed and self._starts_again(child, is_reported=not quiet):
            return
        if quiet and has_failed:
            last = self.states.get(child.node)
            self.failures.append(cause.failure_from_exit(child, last))
            if self.restarts is not None and self.result is not None:
                # The other processes wait for this one, but all files are complete.
                self._enter(Phase.ENDING)

    def _starts_again(self, child: WatchedNode, *, is_reported: bool) -> bool:
        """Plan the next start of a process that has ended, if the run goes on."""
        restarts, node = self.restarts, child.node
        if restarts is None or restarts.is_guarded or self.phase is not Phase.RUNNING:
            return False
        if self.failures or self.result is not None:
            return False
        failure = cause.failure_from_exit(child, self.states.get(node))
        reaction = restarts.react(child)
        if node in self.stuck:
            self.stuck.discard(node)
            what = "did not leave the failed attempt"
            if restarts.failing is None:
                what = "was frozen before it joined the others"
            text = f"{node} {what}, and was ended"
            failure = Failure(node, text, first_hand=False)
        # A process that the node has forked may keep the pipe open.
        if child.report_fd in self.selector.get_map():
            self.selector.unregister(child.report_fd)
        child.reports_ended = True
        if not is_reported and (reaction is None or reaction.is_failure):
            restarts.fail(failure)
        if reaction is None:
            final = restarts.note_exit(node, failure, joined=node in self.joined)
        else:
            final = self._obey(reaction, restarts, failure, node)
        if final is not None:
            self.failures.append(final)
        self.joined.discard(node)
        self.reporters.discard(node)
        self.states.pop(node, None)
        return True

    def _obey(
        self, reaction: Reaction, restarts: Restarts, failure: Failure, node: str
    ) -> Failure | None:
        """React to the end of the ssh process of a node. Return the failure that ends the
        run, if any."""
        if reaction.warning:
            self.watch(NodeWarning(reaction.warning))
        if reaction.moved:
            self._move(reaction.moved)
        if reaction.ends_run:
            return dataclasses.replace(failure, text=failure.text + reaction.why)
        restarts.plan_start(node, reaction.pause)
        return None

    def _move(self, addresses: Mapping[str, str]) -> None:
        """End the processes of a lost machine, and tell the others the new addresses."""
        orders = b"".join(
            address_order(node, address, replaced=True)
            for node, address in addresses.items()
        )
        for child in self.running:
            if child.node in addresses:
                child.kill()
            else:
                child.order(orders)
