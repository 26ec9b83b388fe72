"""Shows the progress of a run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from placer.printable import make_printable
from placer.report.numbers import format_count, format_metrics, format_size
from placer.runtime.run.events import (
    BEFORE_FIRST_STEP,
    Event,
    NodeWarning,
    Output,
    Resumed,
    State,
    Step,
    format_output,
    show_output,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

REFRESH_RATE = 10
"""The updates of the live table per second."""
LINE_EVERY = 1.0
"""The shortest time between two plain lines of steps, in seconds."""
STATES_EVERY = 5.0
"""The time without a line after which the states of nodes are printed, in seconds."""


@dataclass(slots=True)
class RunView:
    """The last reported state of each node, the last step and the last evaluation."""

    nodes: Sequence[str]
    steps: int | None = None
    states: dict[str, State] = field(default_factory=dict)
    last_step: Step | None = None
    last_evaluation: Step | None = None

    def update(self, event: Event) -> None:
        if isinstance(event, State):
            self.states[event.node] = event
        elif isinstance(event, Step):
            self.last_step = event
            if event.eval is not None:
                self.last_evaluation = event

    def step_line(self) -> str:
        """Return the last step as one line."""
        step = self.last_step
        if step is None:
            return "no step yet"
        of = f" of {format_count(self.steps)}" if self.steps is not None else ""
        line = f"step {format_count(step.step)}{of}  epoch {step.epoch}"
        line += f"  {format_metrics(step.metrics)}"
        if step.samples_per_second:
            line += f"  {format_count(step.samples_per_second)} samples/s"
        return line

    def evaluation_line(self) -> str:
        """Return the last evaluation as one line, empty before the first."""
        last = self.last_evaluation
        if last is None or last.eval is None:
            return ""
        after = f"evaluation after step {format_count(last.step)}"
        return f"{after}  {format_metrics(last.eval)}"

    def states_line(self) -> str:
        """Return the state of every node, and the nodes that it waits for, as one
        line."""
        parts = []
        for node in self.nodes:
            state = self.states.get(node)
            part = f"{node} {_format_state(state) if state else 'starting'}"
            if state and state.waiting:
                part += f" (waits for {', '.join(state.waiting)})"
            parts.append(part)
        return "  ".join(parts)


@dataclass(slots=True)
class PlainLines:
    """Prints a run as lines of text: about one per second, and one per evaluation."""

    run: RunView
    stream: TextIO
    clock: Callable[[], float] = time.monotonic
    _written: Step | None = None
    _last: float | None = None

    def __call__(self, event: Event) -> None:
        show_output(event)
        self.run.update(event)
        now = self.clock()
        if self._last is None:
            self._last = now
        if isinstance(event, Step):
            first = self._written is None
            if first or event.eval is not None or now - self._last >= LINE_EVERY:
                self._write_step(now)
            if event.eval is not None:
                self._write(self.run.evaluation_line(), now)
        elif isinstance(event, State) and now - self._last >= STATES_EVERY:
            self._write(self.run.states_line(), now)

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *_: object) -> None:
        if self.run.last_step is not self._written:
            self._write_step(self.clock())

    def _write_step(self, now: float) -> None:
        self._written = self.run.last_step
        self._write(self.run.step_line(), now)

    def _write(self, line: str, now: float) -> None:
        print(make_printable(line), file=self.stream, flush=True)
        self._last = now


@dataclass(slots=True)
class LiveTable:
    """Shows a run as one table that is updated in place."""

    title: str
    run: RunView
    console: Console
    _live: Live | None = None

    def __enter__(self) -> LiveTable:
        from rich.live import Live

        self._live = Live(
            get_renderable=self.view,
            console=self.console,
            refresh_per_second=REFRESH_RATE,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._live is not None
        self._live.stop()

    def __call__(self, event: Event) -> None:
        from rich.text import Text

        from placer.report.console import is_terminal

        self.run.update(event)
        if isinstance(event, Output | NodeWarning | Resumed) and is_terminal(
            sys.stderr
        ):
            # Above the table.
            self.console.print(Text(format_output(event)), soft_wrap=True)
        else:
            show_output(event)

    def view(self) -> RenderableType:
        """Return the table for the current state of the run."""
        from rich.console import Group
        from rich.text import Text

        from placer.report.console import grid

        head = Text(f"{self.title}  ", "bold").append(self.run.step_line(), "not bold")
        names = ("node", "state", "step", "sent", "waits for")
        table = grid(*names, numbers=("step", "sent"))
        for node in self.run.nodes:
            state = self.run.states.get(node)
            if state is None:
                table.add_row(node, Text("starting", "dim"))
                continue
            table.add_row(
                node,
                Text(_format_state(state), _STYLES.get(state.state, "")),
                format_count(state.step),
                format_size(state.bytes_sent),
                Text(", ".join(state.waiting), "yellow"),
            )
        evaluation = self.run.evaluation_line()
        return Group(head, table, *([Text(evaluation)] if evaluation else []))


def _format_state(state: State) -> str:
    return f"{state.state}: {format_count(state.rows)}" if state.rows else state.state


_STYLES = {
    **dict.fromkeys(BEFORE_FIRST_STEP, "yellow"),
    "running": "green",
    **dict.fromkeys(("evaluating", "saving", "writing"), "cyan"),
    "done": "dim",
}


def show_progress(
    title: str, nodes: Sequence[str], steps: int | None, stream: TextIO
) -> LiveTable | PlainLines:
    """Return a context manager that shows a run; call it with each event of the run.

    `steps` is the total number of steps, if known.
    """
    from placer.report.console import console, is_terminal

    seen = RunView(nodes, steps)
    if is_terminal(stream):
        return LiveTable(title, seen, console(stream))
    return PlainLines(seen, stream)
