"""The passes of a stream, in the display of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from placer.report.numbers import format_count, format_metrics, plural
from placer.runtime.control.events import (
    WAITING_IN_STREAM,
    Event,
    FewerNodes,
    Left,
    PassBegun,
    Recovered,
    Resumed,
    State,
    Step,
)
from placer.runtime.control.table_counts import TableCounts, add_counts

MOST_LINES: Final = 10
"""The number of ended passes that a view keeps."""
MOST_TABLES: Final = 3
"""The largest number of sparse tables whose rows of a pass are shown separately."""
SHOWN_WAIT: Final = 1.0
"""Shorter waits for the files of a pass are not shown, in seconds."""
Fields: TypeAlias = Sequence[str]
"""The parts of a line."""


@dataclass(slots=True)
class PassView:
    """The current pass of a stream, and a line for each pass that has ended.

    The line follows once all nodes with sparse tables have reported the end of the pass, so it
    counts the rows that they forgot then.

    Attributes:
        current: The pass that began last; None before the first one.
        last: The last file that an earlier command has trained in turn.
        lines: The lines of the last passes.
    """

    current: PassBegun | None = None
    last: str = ""
    lines: deque[Fields] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    _new_lines: list[Fields] = field(default_factory=list)
    _steps: _StepsOfPass | None = None
    _ended: _StepsOfPass | None = None
    _counts: dict[str, TableCounts] | None = field(default_factory=dict)
    _at_end: dict[str, State] = field(default_factory=dict)
    _waiting: set[str] = field(default_factory=set)
    _wait: str = ""  # the last state of a node that has waited
    _waits_since: float | None = None

    def update(self, event: Event, states: Mapping[str, State], now: float) -> None:
        """Note an event. `states` has the last state of each node, with this event."""
        if isinstance(event, PassBegun):
            self.current, self._steps = event, _StepsOfPass(event)
            self._waiting.clear()
            self._waits_since = None
        elif isinstance(event, Step) and self._steps is not None:
            if self._steps.add(event):
                self.finish(states)
                self._ended, self._steps = self._steps, None
        elif isinstance(event, Resumed):
            self.last = event.last
        elif isinstance(event, Left | FewerNodes | Recovered):
            self._counts = None  # a process counts from its start
            self._at_end.clear()
            self._waiting.clear()
            self._waits_since = None
        elif isinstance(event, State):
            waits = event.state in WAITING_IN_STREAM
            if waits:
                self._wait = event.state
            (self._waiting.add if waits else self._waiting.discard)(event.node)
            if len(self._waiting) < len(states):
                self._waits_since = None
            elif self._waits_since is None:
                self._waits_since = now
            before = self._at_end.get(event.node)
            if event.pass_end != (before.pass_end if before is not None else 0):
                self._at_end[event.node] = event
        if self._ended is not None and isinstance(event, Step | State):
            at_end = {node: self._at_end.get(node, states[node]) for node in states}
            if self._ended.is_counted(at_end):
                self.finish(at_end)

    def finish(self, states: Mapping[str, State]) -> None:
        """Add the line of the pass that has ended, unless it was added."""
        if self._ended is None:
            return
        counts = add_counts(state.tables for state in states.values())
        line = self._ended.line(changes_text(self._counts, counts))
        self._counts, self._ended = counts, None
        self.lines.append(line)
        self._new_lines.append(line)

    def take_lines(self) -> Sequence[Fields]:
        """Return the lines that were added since the last call."""
        taken, self._new_lines = self._new_lines, []
        return taken

    def share(self, step: int) -> float:
        """Return the finished part of the current pass after a step, from 0 to 1."""
        return 0.0 if self.current is None else self._done(step) / self.current.steps

    def position(self, step: int) -> str:
        """Return the position in the current pass after a step; "" before the first pass."""
        if self.current is None:
            return ""
        number, steps = map(format_count, (self.current.number, self.current.steps))
        return f"pass {number}, {format_count(self._done(step))} of {steps} steps"

    def about(self) -> str:
        """Return the files and the rows of the current pass; "" before the first pass."""
        if self.current is None:
            return ""
        fields = files_of(self.current), rows_text(self.current)
        return "  ".join(filter(None, (*fields, *wait_fields(self.current))))

    def waiting(self, now: float) -> str:
        """Return the rows that the run waits for, as a line; "" if it waits for none."""
        if self._waits_since is None:
            return ""
        last = self.last if self.current is None else self.current.last
        after = f" after {last}" if last else ""
        return f"{self._wait}{after} ({format_wait(now - self._waits_since)})"

    def _done(self, step: int) -> int:
        assert self.current is not None
        return min(max(0, step + 1 - self.current.first_step), self.current.steps)


@dataclass(slots=True)
class _StepsOfPass:
    begun: PassBegun
    _first: Step | None = None
    _last: Step | None = None
    _evaluating: float = 0.0

    def add(self, step: Step) -> bool:
        """Add the next step; return whether it is the last one of the pass."""
        if self._last is not None:
            self._evaluating += self._last.evaluation_seconds
        self._first, self._last = self._first or step, step
        return step.step == self.begun.last_step

    def is_counted(self, states: Mapping[str, State]) -> bool:
        """Whether all nodes with sparse tables have reported the end of the pass."""
        last = self.begun.last_step
        return all(each.pass_end >= last for each in states.values() if each.tables)

    def line(self, changes: str) -> Fields:
        """Return the line of the pass; `changes` is about the rows of sparse tables."""
        assert self._last is not None
        begun = self.begun
        rate = self._rows_per_second()
        fields = [
            f"pass {format_count(begun.number)}",
            files_of(begun),
            plural(begun.steps, "step"),
            rows_text(begun),
            format_metrics(self._last.epoch_metrics or self._last.metrics),
            f"{format_count(rate)} samples/s" if rate else "",
            changes,
            *wait_fields(begun),
        ]
        return [*filter(None, fields)]

    def _rows_per_second(self) -> float:
        """Return the rate after the first step of the pass, without evaluations."""
        assert self._first is not None
        assert self._last is not None
        rows = self.begun.rows / self.begun.steps * (self._last.step - self._first.step)
        seconds = self._last.seconds - self._first.seconds - self._evaluating
        return rows / seconds if seconds > 0 else self._last.samples_per_second


def files_text(first: str, last: str, count: int) -> str:
    """Return the files of a pass as text.

    >>> files_text("29/13.csv", "29/13.csv", 1), files_text("29/00.csv", "29/02.csv", 3)
    ('29/13.csv', '29/00.csv to 29/02.csv (3 files)')
    """
    return first if count == 1 else f"{first} to {last} ({format_count(count)} files)"


def files_of(begun: PassBegun) -> str:
    """Return the files of a pass as text; "" for a Python stream."""
    if not begun.files:
        return ""
    return files_text(begun.files[0], begun.files[-1], len(begun.files))


def rows_text(begun: PassBegun) -> str:
    """Return the rows of a pass as text."""
    left = f" ({format_count(begun.left_out)} left over)" if begun.left_out else ""
    return f"{plural(begun.rows, 'row')}{left}"


def wait_fields(begun: PassBegun) -> Sequence[str]:
    """Return the wait for the files of a pass as text; nothing for a short one."""
    waited = begun.waited
    return [f"waited {format_wait(waited)}"] if waited >= SHOWN_WAIT else []


def format_wait(seconds: float) -> str:
    """Format a long time in one unit.

    >>> format_wait(40), format_wait(750), format_wait(10_000), format_wait(200_000)
    ('40 s', '12 min', '2.8 h', '56 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds // 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 10 else f"{hours:.0f} h"


def changes_text(
    before: Mapping[str, TableCounts] | None, after: Mapping[str, TableCounts]
) -> str:
    """Return the new and the removed rows of sparse tables as text.

    Removed rows are left out while a table has removed none at all.

    Args:
        before: the counts of each table at the begin of a pass; None if not known.
        after: the counts at its end.
    """
    if before is None or not after:
        return ""
    if len(after) > MOST_TABLES:
        totals = (sum(each.values(), TableCounts()) for each in (before, after))
        return f"{_changes(*totals)} in {len(after)} tables"
    named = {n: _changes(before.get(n, TableCounts()), after[n]) for n in after}
    if len(named) == 1:
        return next(iter(named.values()))
    return ", ".join(f"{name}: {text}" for name, text in named.items())


def _changes(before: TableCounts, after: TableCounts) -> str:
    text = plural(after.admitted - before.admitted, "new row")
    removed = after.forgotten + after.evicted
    if removed:
        text += f", {format_count(removed - before.forgotten - before.evicted)} removed"
    return text
