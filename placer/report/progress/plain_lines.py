"""Shows a run as lines of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TextIO

from placer.report.numbers import format_count, format_metrics
from placer.report.progress.view import (
    NodeRow,
    RunView,
    checkpoint_text,
    class_rows,
    fill_lines,
    group_rows,
    publication_text,
    table_text,
    wait_text,
)
from placer.runtime.control.events import (
    CheckpointSaved,
    Event,
    PassBegun,
    Predicted,
    PublicationWritten,
    State,
    Step,
    show_output,
)
from placer.system.printable import make_printable

MAX_LINE = 100
"""The largest length of a line of a step, in characters. Fields that do not fit are left
out, the last ones first."""
LINE_EVERY = 1.0
"""Shortest time between two lines of steps, in seconds."""
STATES_EVERY = 5.0
"""Node states are printed after this many seconds without a line."""
TABLES_EVERY = 10.0
"""Longest time between two reports of the sparse tables, in seconds."""
WAIT_EVERY = 60.0
"""Shortest time between two lines about a wait for a file, in seconds. It doubles each time."""


@dataclass(slots=True)
class PlainLines:
    """Prints a run as lines of text: about one per second, and one per evaluation."""

    run: RunView
    stream: TextIO
    _written: Step | None = None
    _last: float | None = None
    _tables_at: float = 0.0
    _wait_every: float = 0.0

    def __call__(self, event: Event) -> None:
        show_output(event)
        self.run.update(event)
        now = self.run.clock()
        if self._last is None:
            self._last = now
        if isinstance(event, PassBegun):
            self._wait_every, self._last = 0.0, now
        elif isinstance(event, Step):
            if first := self._written is None:
                self._tables_at = now
            if first or event.eval is not None or now - self._last >= LINE_EVERY:
                self._write_step(now)
            if event.eval is not None:
                self._write(_evaluation_line(event), now)
            if event.eval is not None or now - self._tables_at >= TABLES_EVERY:
                self._write_tables(now)
        elif isinstance(event, CheckpointSaved):
            self._write(checkpoint_text(event), now)
        elif isinstance(event, PublicationWritten):
            self._write(publication_text(event), now)
        elif isinstance(event, Predicted):
            if now - self._last >= LINE_EVERY:
                self._write_position(now)
        elif isinstance(event, State) and (waiting := self.run.waiting()):
            if now - self._last >= (self._wait_every or STATES_EVERY):
                self._wait_every = max(WAIT_EVERY, 2 * self._wait_every)
                self._write(waiting, now)
        elif isinstance(event, State) and self._wait_every:
            # The nodes end a wait one after another.
            self._wait_every, self._last = 0.0, now
        elif isinstance(event, State) and now - self._last >= STATES_EVERY:
            texts = self.run.recovery(), *map(_state_text, group_rows(self.run))
            for line in fill_lines(texts, MAX_LINE):
                self._write(line, now)
        self._write_passes(now)

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        now = self.run.clock()
        if self.run.last_step is not self._written:
            self._write_step(now)
        self.run.passes.finish(self.run.states)
        self._write_passes(now)
        if kind is None:
            for row in class_rows(self.run):
                if row.share:
                    self._write(wait_text(row), now)

    def _write_step(self, now: float) -> None:
        self._written = self.run.last_step
        self._write_position(now)

    def _write_passes(self, now: float) -> None:
        for fields in self.run.passes.take_lines():
            self._write("  ".join(fields), now)

    def _write_tables(self, now: float) -> None:
        self._tables_at = now
        for name, counts in self.run.tables().items():
            self._write(table_text(name, counts), now)

    def _write_position(self, now: float) -> None:
        run = self.run
        line, *others = run.position(), *run.metrics()
        others += (*run.times(), *run.rates(), run.learning_rates())
        for field in others:
            if field and len(line) + 2 + len(field) <= MAX_LINE:
                line += f"  {field}"
        self._write(line, now)

    def _write(self, line: str, now: float) -> None:
        print(make_printable(line), file=self.stream, flush=True)
        self._last = now


def _evaluation_line(step: Step) -> str:
    after = f"evaluation after step {format_count(step.step)}"
    return f"{after}  {format_metrics(step.eval or {})}"


def _state_text(row: NodeRow) -> str:
    waits = f" (waits for {row.waits_for})" if row.waits_for else ""
    return f"{row.nodes} {row.state}{waits}"
