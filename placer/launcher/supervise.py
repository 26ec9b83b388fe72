"""Watching the processes of a run: what they report, how they end, ending them."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from placer.errors import RunError
from placer.launcher import cause
from placer.launcher.cause import Finding
from placer.launcher.child import Child
from placer.launcher.events import Event, Failed, Finished, State, read_event
from placer.launcher.signals import Signals

Watch = Callable[[Event], None]

# A node that is lost is named by its peers after 8 s without a heartbeat. With these
# three the run has ended, and all its processes, within 20 s of any failure.
HEARD_GRACE = 3.0
"""Seconds for the root cause to be reported once somebody has heard of it."""
ROOT_GRACE = 1.5
"""Seconds for the others to end by themselves once the root cause is known."""
TERM_GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL."""
RESULT_GRACE = 30.0
"""Seconds for all nodes to end once the run has its result."""


def supervise(children: Sequence[Child], watch: Watch, signals: Signals) -> Finished:
    """Watch until all processes have ended; the run's result.

    `watch` is shown each event. However this ends, no process is left. Raises RunError
    with the root cause, KeyboardInterrupt or SystemExit for a signal to the launcher.
    """
    with selectors.DefaultSelector() as selector:
        run = _Run(children, watch, signals, selector)
        try:
            run.follow()
        finally:
            run.end()
    signals.heed()
    return run.outcome()


@dataclass(slots=True)
class _Run:
    children: Sequence[Child]
    watch: Watch
    signals: Signals
    selector: selectors.BaseSelector
    found: list[Finding] = field(default_factory=list)
    finished: Finished | None = None
    states: dict[str, str] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    ending: bool = False

    def __post_init__(self) -> None:
        self.selector.register(self.signals.wake, selectors.EVENT_READ, None)
        for child in self.children:
            for fd in (child.reports, child.pidfd):
                self.selector.register(fd, selectors.EVENT_READ, child)

    @property
    def running(self) -> list[Child]:
        return [child for child in self.children if child.running]

    def follow(self) -> None:
        """Until all have ended, or there is a reason to end them."""
        self._wait(None, lambda: bool(self.found or self.finished or self.signals.come))
        if self.finished and not self.found and not self.signals.come:
            until = time.monotonic() + RESULT_GRACE
            self._wait(until, lambda: bool(self.found or self.signals.come))
            if not self.signals.come:
                self.found += [cause.of_delay(c, RESULT_GRACE) for c in self.running]
        if self.found and not self.signals.come:
            self._let_them_end()

    def _let_them_end(self) -> None:
        heard = time.monotonic()
        self._wait(
            heard + HEARD_GRACE,
            lambda: bool(self._root_is_known or self.signals.come or self._only_frozen),
        )
        self._wait(
            time.monotonic() + ROOT_GRACE,
            lambda: bool(self.signals.come or self._only_frozen),
        )

    def end(self) -> None:
        """End every process that still runs, a frozen one at once."""
        self.ending = True
        self.frozen = {child.node for child in self.running if child.is_stopped()}
        for child in self.running:
            stopped = child.node in self.frozen
            child.signal(signal.SIGKILL if stopped else signal.SIGTERM)
        asked = len(self.signals.come)
        self._wait(
            time.monotonic() + TERM_GRACE, lambda: len(self.signals.come) > asked
        )
        for child in self.running:
            child.signal(signal.SIGKILL)
        self._wait(None, lambda: False)

    def outcome(self) -> Finished:
        """The result, else the error with the root cause."""
        finding = cause.choose(self.found)
        if finding is not None:
            blamed = next((c for c in self.children if c.node == finding.node), None)
            log = blamed.log if blamed else None
            raise cause.error(finding, log, frozen=finding.node in self.frozen)
        if self.finished is None:
            raise RunError("all nodes have ended, and none reported a result")
        return self.finished

    @property
    def _root_is_known(self) -> bool:
        return any(finding.seen for finding in self.found)

    @property
    def _only_frozen(self) -> bool:
        return all(child.is_stopped() for child in self.running)

    def _wait(self, until: float | None, enough: Callable[[], bool]) -> None:
        """Take what comes until no process runs, it is enough, or the time is up."""
        while self.running and not enough():
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return
            for key, _ in self.selector.select(left):
                if key.data is None:
                    os.read(self.signals.wake, 512)
                elif key.fd == key.data.reports:
                    self._take_reports(key.data)
                elif key.data.running:
                    self._take_end(key.data)

    def _take_reports(self, child: Child) -> bool:
        """Take one read's worth of events; whether there may be more."""
        lines, more = child.read()
        for line in lines:
            if not self.ending:
                self._take_event(child, read_event(child.node, line))
        if child.deaf and child.reports in self.selector.get_map():
            self.selector.unregister(child.reports)
        return more

    def _take_event(self, child: Child, event: Event) -> None:
        match event:
            case Failed():
                self.reported.add(child.node)
                self.found.append(cause.of_report(event))
            case Finished():
                self.finished = event
            case State():
                self.states[child.node] = event.state
        self.watch(event)

    def _take_end(self, child: Child) -> None:
        # Its last words first: an end that was reported is no finding of its own.
        while self._take_reports(child):
            pass
        self.selector.unregister(child.pidfd)
        child.reap()
        quiet = child.node not in self.reported and not self.ending
        early = self.states.get(child.node) != "done" and self.finished is None
        if quiet and (child.status != 0 or early):
            self.found.append(cause.of_end(child))
