"""Starts the processes of a run again after failures, and follows its attempts.

The control node decides whether a run may begin another attempt (`placer.checkpoint.attempts`).
The launcher starts the processes that have ended. Callbacks, the history and the displays
receive each step once: repeated steps are equal, and the launcher hides them. Repeated steps of
asynchronous training have other metrics. They are passed on, marked, and replace the earlier ones.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from msgspec import structs

from placer.launcher.absent import Absent
from placer.launcher.cause import Failure, choose_root_cause
from placer.launcher.machines import Machines, Reaction
from placer.launcher.pauses import pause_before, pause_of_outage
from placer.launcher.watched_node import WatchedNode
from placer.place.node_kinds import NodeId
from placer.runtime.control.events import (
    CheckpointSaved,
    Event,
    Left,
    NodeWarning,
    PassBegun,
    Recovered,
    Resumed,
    Start,
    State,
    Step,
)
from placer.runtime.control.result import Restart

ROOT_GRACE: Final = 3.0
"""Seconds for the root cause of a failure to be reported after the first report."""
UNHEARD_GRACE: Final = 7.0
"""Seconds after `--lost-after` in which ssh notices that a machine is silent (`ssh_command`). A
node that is silent for longer on another machine is frozen."""
KEPT_METRICS: Final = 100_000
"""The number of last steps whose metrics are compared with those of repeated steps."""
LEAVE_GRACE: Final = 5.0
"""Seconds after `--lost-after` in which a process must have left a failed attempt."""

StartAgain = Callable[[WatchedNode, int], WatchedNode]
"""Starts the process of a node again, in an attempt of a run that has trained, or in attempt 0
of one that has not. Returns the process."""


@dataclass(slots=True)
class _Failing:
    """A failed attempt, until all nodes train again.

    Attributes:
        since: the time of the first report.
        failures: the reported failures.
        attempt: the last attempt that a process has left.
        left_at: the time at which the first process has left it.
        staying: the processes that have not left it.
        told: the failures that the user has been told.
        down: the processes that have ended.
        ends: how often each process has ended.
        control_left: the last attempt that the control node has left.
        start: the event of a first step whose attempt may be the one that has failed. Once all
            processes that have ended have joined again, it is that of the next one.
        fewer: the sentence that the run goes on with fewer nodes; empty if it does not.
    """

    since: float
    failures: list[Failure] = field(default_factory=list)
    attempt: int = 0
    left_at: float = 0.0
    staying: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    down: set[str] = field(default_factory=set)
    ends: Counter[str] = field(default_factory=Counter)
    control_left: int = -1
    start: Start | None = None
    fewer: str = ""

    @property
    def texts(self) -> list[str]:
        """The failures that nodes have reported themselves, the cause first."""
        own = [each.text for each in self.failures if each.first_hand]
        return [*dict.fromkeys([self.cause.text, *own])]

    @property
    def cause(self) -> Failure:
        cause = choose_root_cause(self.failures)
        assert cause is not None
        return cause


@dataclass(slots=True)
class Restarts:
    """The restarts of a run.

    Attributes:
        limit: the value of `--restarts`.
        control: the process of the control node.
        start: starts a process again; None if the guard of each process does.
        lost_after: the value of `--lost-after`.
        compares: whether repeated steps have the same metrics. They are then compared and
            hidden; otherwise they are passed on.
        attempt: the number of the attempt.
        furthest: the last step of all attempts.
        done: the failures after which the run went on.
        failing: the failure from which the run recovers now, if any.
        joined: the processes that have joined the others since they were started.
        machines: the machines of the nodes, if ssh runs them.
        absent: the processes that have failed and not joined again.
        saved: the step of the last checkpoint of the run; 0 before the first one.
        longest_pause: the longest pause after an error of a stream, in seconds.
    """

    limit: int
    control: str
    start: StartAgain | None
    lost_after: float
    compares: bool
    attempt: int = 1
    furthest: int = 0
    done: list[Restart] = field(default_factory=list)
    failing: _Failing | None = None
    joined: set[str] = field(default_factory=set)
    machines: Machines | None = None
    absent: Absent = field(default_factory=Absent)
    saved: int = 0
    longest_pause: float = math.inf
    _metrics: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    _last_step: int = 0
    _last_pass: int = 0
    _differs: bool = False
    _is_shown: bool = False
    _has_saved: bool = False
    _in_a_row: int = 0
    """The number of attempts in a row that have failed without a new checkpoint."""
    _warned: set[str] = field(default_factory=set)
    _early_ends: Counter[str] = field(default_factory=Counter)
    _due: dict[str, float] = field(default_factory=dict)
    _frozen_since: dict[str, float] = field(default_factory=dict)
    _begun_steps: Counter[str] = field(default_factory=Counter)
    """The last step that each node has begun in the attempt."""
    _heard: dict[str, float] = field(default_factory=dict)
    """The time of the last event of each process."""

    # Failures.

    def fail(self, failure: Failure) -> None:
        """Note a failure of the present attempt."""
        if self.failing is not None and self.absent.lost:
            return  # The other nodes have waited for those that are given up.
        if self.failing is None:
            self.failing = _Failing(time.monotonic())
            self._in_a_row = 0 if self._has_saved else self._in_a_row + 1
            self._has_saved = False
        self.failing.failures.append(failure)
        if failure.node:
            self.absent.add(failure.node)

    def note_left(self, event: Left, failure: Failure, joined: set[str]) -> None:
        """Note that a process has left an attempt.

        Args:
            event: the report of the process.
            failure: the failure in the report.
            joined: the running processes that have joined the others.
        """
        if event.attempt < self.attempt:
            return  # the report was read after those of the next attempt
        self.fail(failure)
        failing = self.failing
        assert failing is not None
        if event.attempt > failing.attempt:
            failing.attempt, failing.left_at = event.attempt, time.monotonic()
            failing.staying = joined
        process = NodeId(event.node).process
        if process == self.control:
            failing.control_left = max(failing.control_left, event.attempt)
        if failing.start is not None and event.attempt >= failing.start.attempt:
            failing.start = None
        if not event.root:  # otherwise the process ends
            failing.staying.discard(process)
        elif self.is_guarded:
            failing.ends[process] += 1
            self._note_down(process)

    def note_exit(self, node: str, failure: Failure, *, joined: bool) -> Failure | None:
        """Note that a process has ended, and plan its next start.

        Args:
            node: the process.
            failure: its failure.
            joined: whether it had joined the others.

        Returns:
            The failure that ends the run, if the process does not come up; else None.
        """
        if (failing := self.failing) is not None:
            failing.ends[node] += 1
        self._note_down(node)
        self._early_ends[node] = 0 if joined else self._early_ends[node] + 1
        ends = self._early_ends[node]
        if ends > self.limit:
            if self._is_shown:
                self.absent.give_up(node, ends)
            text = f"{failure.text}\n  it has failed {ends} times before it joined"
            return replace(failure, text=text)
        # The control node counts the attempts that it begins, and ends the run earlier.
        if failing is not None and failing.ends[node] > self.limit + 1:
            text = (
                f"{failure.text}\n  it has failed {failing.ends[node]} times in a row"
            )
            return replace(failure, text=text)
        self._due[node] = time.monotonic() + max(pause_before(ends), self._pause)
        return None

    @property
    def _pause(self) -> float:
        """The seconds before the next attempt, which the source of a stream may need. There is no
        pause if the next attempt ends the run."""
        failing, failures = self.failing, self._in_a_row
        is_outage = failing is not None and failing.cause.is_outage
        if not is_outage or failures > self.limit:
            return 0.0
        return min(self.longest_pause, pause_of_outage(failures))

    def react(self, child: WatchedNode) -> Reaction | None:
        """Return the reaction to the end of a process, if it differs from `note_exit`. It may
        move nodes to another machine."""
        if self.machines is None:
            return None
        reaction = self.machines.react(
            child,
            self._heard,
            has_trained=self._is_shown,
            since=self.absent.since(child.node),
        )
        if reaction is not None and reaction.ends_run and self._is_shown:
            self.absent.give_up_late(child.node)
        return reaction

    def news_of_machines(self) -> Iterator[tuple[str, bool]]:
        """Yield new messages about spare machines, and whether each ends the run."""
        if self.machines is not None:
            yield from self.machines.news()

    def plan_start(self, node: str, pause: float) -> None:
        """Plan the next start of a process that has ended without a failure of the node."""
        self._note_down(node)
        self._due[node] = time.monotonic() + pause

    def overdue(self) -> Iterator[Failure]:
        """Yield a failure for each node that is given up, because it has not come back."""
        if self._is_shown and self.failing is not None:
            yield from self.absent.overdue(time.monotonic())

    @property
    def next_attempt(self) -> int:
        """The number of the attempt that new processes for all nodes begin."""
        left = 0 if self.failing is None else self.failing.attempt
        return max(self.attempt, left) + 1

    def continue_with(
        self,
        control: str,
        fewer: str,
        start: StartAgain,
        *,
        machines: Machines | None = None,
    ) -> Restarts:
        """Continue with the new processes of a build with fewer nodes.

        The repeated steps have other metrics now, by rounding, and are not compared.

        Args:
            control: the process of the control node.
            fewer: a sentence about the nodes, for the result.
            start: starts a process again.
            machines: the machines of the nodes, if ssh runs them.
        """
        self.attempt = self.next_attempt
        self.control, self.start, self.machines = control, start, machines
        self._heard.clear()
        self.absent.clear()
        for each in (self.joined, self._metrics, self._early_ends, self._due):
            each.clear()
        for each in (self._frozen_since, self._begun_steps):
            each.clear()
        if (failing := self.failing) is not None:
            failing.attempt = max(failing.attempt, self.attempt - 1)
            failing.staying, failing.down = set(), set()
            failing.ends.clear()
            failing.start, failing.fewer = None, fewer
        return self

    def _note_down(self, node: str) -> None:
        self.absent.add(node)
        self._heard.pop(node, None)
        if (failing := self.failing) is None:
            return
        failing.staying.discard(node)
        failing.down.add(node)
        if node == self.control:
            failing.start = None
            if self.is_guarded:
                # If an engine has ended all processes, attempts that were never counted are
                # forgotten: the next one may have a lower number.
                failing.attempt = 0

    def due(self, now: float) -> Iterator[str]:
        """Yield the processes to start now."""
        for node, at in [*self._due.items()]:
            if now >= at:
                del self._due[node]
                yield node

    def explain(self, failure: Failure) -> Failure:
        """Return a failure that ends a run. If it has failed while it recovers, the text has
        the last failure as the launcher knows it."""
        if self.failing is None:
            return failure
        last = self.failing.cause
        if failure.node:
            more = "" if last.what in failure.text else _last_failure(last)
            return replace(failure, text=failure.text + more)
        why = failure.text.partition("\n")[0]
        if last.node and why.startswith(f"{last.node} "):
            text = f"{why}: {last.what}"
        else:
            text = why + _last_failure(last)
        if self.furthest:
            text += f"\n  the run got no further than step {self.furthest:,}"
        return replace(failure, node=last.node, text=text)

    @property
    def is_guarded(self) -> bool:
        """Whether each process has a guard, which starts it again."""
        return self.start is None

    @property
    def repeats(self) -> bool:
        """Whether the nodes train again, but have not reached the furthest step."""
        return self.failing is None and self._last_step < self.furthest

    @property
    def begun(self) -> int:
        """The number of attempts that have begun to train."""
        return len(self.done) + 1

    def start_again(self, child: WatchedNode) -> WatchedNode:
        """Start the process of a node again."""
        assert self.start is not None
        return self.start(child, self.next_attempt if self._is_shown else 0)

    @property
    def has_due(self) -> bool:
        """Whether a process is to be started later."""
        return bool(self._due)

    def stuck(self, children: Sequence[WatchedNode]) -> Iterator[WatchedNode]:
        """Yield the processes to kill, because they cannot leave a failed attempt or join the
        next one: they are frozen, or have taken too long."""
        if self.is_guarded:
            return
        failing, now = self.failing, time.monotonic()
        for child in children:
            node = child.node
            if not child.running:
                continue
            if self._is_unheard(child, failing, now):
                yield child
            elif failing is not None and node in failing.staying:
                elapsed = now - failing.left_at
                is_frozen = elapsed > ROOT_GRACE and child.is_stopped()
                if is_frozen or elapsed > self.lost_after + LEAVE_GRACE:
                    yield child
            elif failing is None and node in self.joined:
                self._frozen_since.pop(node, None)  # otherwise its peers notice
            elif not child.is_stopped():
                self._frozen_since.pop(node, None)
            elif now - self._frozen_since.setdefault(node, now) > self.lost_after:
                yield child

    def _is_unheard(
        self, child: WatchedNode, failing: _Failing | None, now: float
    ) -> bool:
        """Whether a process of another machine is frozen: neither the launcher nor its peers
        hear it. The events of nodes that have joined come from the control node."""
        node, limit = child.node, self.lost_after + UNHEARD_GRACE
        if not child.by_ssh or now - self._heard.get(node, now) < limit:
            return False
        if failing is not None and node in failing.staying:
            return any(NodeId(each.node).process == node for each in failing.failures)
        if node == self.control or (failing is None and node in self.joined):
            return False
        return now - self._heard.get(self.control, 0.0) < ROOT_GRACE

    def news(self) -> Iterator[Event]:
        """Yield the messages about a failure, once its cause is known, and about its end."""
        yield from self._recover_if_next()
        failing = self.failing
        if failing is None:
            return
        is_known = any(failure.first_hand for failure in failing.failures)
        if is_known or time.monotonic() - failing.since > ROOT_GRACE:
            yield from self._tell(failing)

    # Events.

    def pass_on(self, event: Event) -> Iterator[Event]:
        """Yield the events that the followers of a run receive for an event of a node."""
        if isinstance(event, State | Left):
            self._heard[NodeId(event.node).process] = time.monotonic()
        match event:
            case Start():
                yield from self._begin(event)
                if not self._is_shown:
                    self._is_shown = True
                    yield event
            case Resumed() if self.furthest:
                return
            case PassBegun():
                if event.number > self._last_pass:
                    self._last_pass = event.number
                    yield event
            case NodeWarning():
                # Each attempt repeats the warnings before its first step.
                if event.message in self._warned:
                    return
                if not self._is_shown:
                    self._warned.add(event.message)
                yield event
            case Step():
                yield from self._recover_if_next()
                yield from self._step(event)
            case State():
                begun = self._begun_steps
                begun[event.node] = max(begun[event.node], event.step)
                self.absent.note(event)
                yield event
            case CheckpointSaved():
                self._has_saved = True
                self.saved = event.step
                # A checkpoint is complete some time after its step.
                self._metrics = {
                    step: kept
                    for step, kept in self._metrics.items()
                    if step > event.step
                }
                yield event
            case _:
                yield event

    def _begin(self, start: Start) -> Iterator[Event]:
        """Note that all nodes are about to train, in the first attempt or after a failure."""
        failing = self.failing
        if failing is None:
            self.attempt = start.attempt
        elif start.attempt > failing.attempt:  # otherwise its attempt has failed since
            failing.start = start
            yield from self._recover_if_next()

    def _recover_if_next(self) -> Iterator[Event]:
        """Note that all nodes train again, if it is known that the next attempt has begun."""
        failing = self.failing
        if failing is None or failing.start is None:
            return
        if failing.control_left != failing.attempt and failing.down - self.joined:
            return
        start = failing.start
        self.attempt = start.attempt
        yield from self._recover(failing, start.first_step - 1, start.workers)

    def _recover(
        self, failing: _Failing, step: int, workers: Mapping[str, int]
    ) -> Iterator[Event]:
        """Note that all nodes train again after a step, and each of the asynchronous workers
        after its own step."""
        yield from self._tell(failing)
        self.failing, self._differs = None, False
        self.absent.clear()
        event = Recovered(
            self.attempt,
            step,
            max(0, self.furthest - step),
            time.monotonic() - failing.since,
            failing.cause.node,
            "; ".join(filter(None, (*failing.texts, failing.fewer))),
            replaces=not self.compares,
            workers={
                node: max(0, self._begun_steps[node] - done)
                for node, done in workers.items()
            },
        )
        self._begun_steps.clear()
        self._last_step = step
        self.done.append(event.restart)
        yield event
        if 0 < self.furthest < step:
            lost = [f"{each:,}" for each in sorted({self.furthest + 1, step})]
            yield NodeWarning(
                f"callbacks do not receive step {' to '.join(lost)}: {self.control} was lost"
                " before it had reported it"
            )
            self.furthest = step

    def finish(self, steps: int) -> Iterator[Event]:
        """Note that the run has a result after `steps` steps. If the last attempt had nothing
        left to train, it ends the recovery."""
        if self.failing is not None:
            yield from self._recover(self.failing, steps, {})

    def _tell(self, failing: _Failing) -> Iterator[Event]:
        for text in failing.texts:
            if text in failing.told:
                continue
            then = self._way_back
            if failing.told:
                then = ", before all nodes trained again"
            failing.told.append(text)
            what, *more = text.split("\n")
            yield NodeWarning("\n".join((f"{what}{then}", *more)))

    @property
    def _way_back(self) -> str:
        """The end of the warning of a failure."""
        failures, number = self._in_a_row, len(self.done) + 1
        if failures > self.limit:
            return f"; failure {failures} in a row without a new checkpoint"
        count = f"restart {number}"
        if failures:
            count = f"restart {failures} of {self.limit} without a new checkpoint"
            count += f", {number} in all" if number > failures else ""
        pause = 0.0 if self.is_guarded else self._pause
        after = f" after a pause of {pause:g} s" if pause else ""
        return f"; all nodes go back{after} ({count})"

    def _step(self, event: Step) -> Iterator[Event]:
        metrics = event.metrics, event.eval, event.epoch_metrics
        self._last_step = event.step
        if event.step > self.furthest:
            self.furthest = event.step
            if self.compares:
                self._metrics[event.step] = metrics
            if len(self._metrics) > KEPT_METRICS:
                del self._metrics[next(iter(self._metrics))]
            yield event
            return
        if not self.compares:
            yield structs.replace(event, again=True)
            return
        before = self._metrics.get(event.step)
        if self._differs or before is None:
            return
        if repr(before) != repr(metrics):
            self._differs = True
            yield NodeWarning(
                f"the repeated step {event.step} has other metrics than before the"
                f" failure: {metrics[0]} instead of {before[0]}"
            )


def _last_failure(failure: Failure) -> str:
    return f"\n  the last failure: {failure.text}"
