"""Watching the processes of a run: what they report, how they end, ending them."""

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
from placer.launcher.cause import Finding
from placer.launcher.node_events import (
    Event,
    Failed,
    Finished,
    State,
    Warned,
    read_event,
)
from placer.launcher.node_process import Child
from placer.launcher.signals import Signals
from placer.runtime.run.events import READING, STOPPING

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
"""Seconds for the processes to end once no node needs another."""
FROZEN_GRACE = 8.0
"""Seconds that a stopped process has to be continued while the result waits for it."""
TICK = 0.5
"""Seconds between two looks at which processes are stopped, which nothing announces."""


BEFORE = ("joining", READING, "compiling")
"""The states of a node that has not begun its first step."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run, and what went wrong once it did not depend on it any more."""

    result: Finished
    warnings: tuple[str, ...]


def supervise(
    children: Sequence[Child],
    watch: Watch,
    signals: Signals,
    *,
    saves: Path | None = None,
) -> Outcome:
    """Watch until all processes have ended; the run's outcome.

    `watch` is shown each event. The first child is the control node. Where the run
    `saves` its parameters to a file, a first signal stops it after a step. However this
    ends, no process is left. Raises RunError with the root cause, KeyboardInterrupt or
    SystemExit for a signal to the launcher.

    A node that reports "writing" or "done" has passed the last barrier: by then every
    node has done its part, and what is missing is what the control node writes. A
    process that fails after that is a warning if there is a result.
    """
    with selectors.DefaultSelector() as selector:
        run = _Run(children, watch, signals, selector, saves)
        try:
            run.follow()
        finally:
            run.end()
    signals.heed(run.saved())
    return run.outcome()


@dataclass(slots=True)
class _Run:
    children: Sequence[Child]
    watch: Watch
    signals: Signals
    selector: selectors.BaseSelector
    saves: Path | None
    found: list[Finding] = field(default_factory=list)
    late: list[Finding] = field(default_factory=list)
    finished: Finished | None = None
    states: dict[str, str] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)
    ending: bool = False
    heeded: int = 0

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
        self._wait(None, lambda: bool(self.found or self._settled or self._signalled))
        if self._signalled and self.saves and self._has_begun and not self.found:
            self._let_them_save()
        if self._signalled:
            return
        if self.found and not self._settled:
            self._let_them_fail()
        if self._settled and not self._signalled:
            # What was found before all had passed the last barrier came just after it.
            self.late, self.found = [*self.found, *self.late], []
            self._let_them_finish()

    def _let_them_save(self) -> None:
        """Have all nodes stop after the same step and save, unless another signal comes
        or they take too long. Saving itself takes as long as it takes."""
        control = self.children[0]
        self.heeded += 1
        control.order_stop()
        self.watch(Warned(STOPPING))

        def over() -> bool:
            return bool(self.found or self._settled or self._signalled)

        def is_saving() -> bool:
            return self.states.get(control.node) == "saving"

        grace = self.signals.graces[0]
        until = None if grace is None else time.monotonic() + grace
        self._wait(until, lambda: over() or is_saving())
        if is_saving():
            self._wait(None, over)

    def _let_them_finish(self) -> None:
        """Wait for the processes' own ends: as long as one still has something to do,
        else until the grace is over."""
        since = time.monotonic()
        while self.running:
            if self._signalled and self.saves and not self.finished and not self.heeded:
                self.heeded += 1  # it is about to be saved
            if self._signalled:
                return
            if self._only_frozen:
                grace = 0.0 if self.finished else FROZEN_GRACE
            elif self._busy:
                since, grace = time.monotonic(), RESULT_GRACE
            else:
                grace = RESULT_GRACE
            left = since + grace - time.monotonic()
            if left <= 0:
                self.late += [
                    cause.of_delay(child, None if child.is_stopped() else grace)
                    for child in self.running
                ]
                return
            until = time.monotonic() + min(TICK, left)
            self._wait(until, lambda: self._signalled)

    def _let_them_fail(self) -> None:
        """Wait for the root cause, and then for the others' own ends."""

        def over() -> bool:
            return self._signalled or self._only_frozen or self._settled

        self._wait(
            time.monotonic() + HEARD_GRACE, lambda: over() or self._root_is_known
        )
        self._wait(time.monotonic() + ROOT_GRACE, over)

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

    def saved(self) -> str:
        """What came of a run that a signal has ended: of its parameters, and whether it
        had failed before."""
        if self.saves is None:
            failed = None if self.finished else cause.choose(self.found)
            return "" if failed is None else f"the run had failed: {failed.text}"
        if self.finished:
            steps = self.finished.steps
            return f"stopped after step {steps}; the parameters are in {self.saves}"
        finding = cause.choose([*self.found, *self.late])
        if finding is not None:
            why = finding.text
        elif not self._has_begun:
            why = "there was no step yet"
        elif len(self.signals.come) > 1:
            why = "there was a second signal"
        elif self._settled:
            why = "the file was not written to its end"
        else:
            why = f"the nodes did not stop within {self.signals.graces[0]:g} s"
        return f"nothing was saved: {why}"

    def outcome(self) -> Outcome:
        """The result, else the error with the root cause."""
        failures = [*self.found, *self.late]
        if self.finished is None:
            finding = cause.choose(failures)
            if finding is None:
                raise RunError("all nodes have ended, and none reported a result")
            raise cause.error(finding, self._log(finding), frozen=self._froze(finding))
        seen = [finding for finding in failures if finding.seen] or failures[:1]
        warnings = (cause.warning(f, self._log(f), frozen=self._froze(f)) for f in seen)
        return Outcome(self.finished, tuple(warnings))

    def _froze(self, finding: Finding) -> bool:
        return finding.node in self.frozen

    def _log(self, finding: Finding) -> Path | None:
        return next((c.log for c in self.children if c.node == finding.node), None)

    @property
    def _has_begun(self) -> bool:
        return self.states.get(self.children[0].node) not in (None, *BEFORE)

    @property
    def _signalled(self) -> bool:
        """Whether a signal has come that nothing was done about yet."""
        return len(self.signals.come) > self.heeded

    @property
    def _settled(self) -> bool:
        """Whether no node needs another any more."""
        passed = {"writing", "done"}
        return self.finished is not None or not passed.isdisjoint(self.states.values())

    @property
    def _busy(self) -> bool:
        """Whether there is no result yet, and a process that may have to do with it."""
        return self.finished is None and any(
            self.states.get(child.node) != "done"
            and child.node not in self.reported
            and not child.is_stopped()
            for child in self.running
        )

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
                self._blame(cause.of_report(event))
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
            self._blame(cause.of_end(child))

    def _blame(self, finding: Finding) -> None:
        (self.late if self._settled else self.found).append(finding)
