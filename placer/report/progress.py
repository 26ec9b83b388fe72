"""A run in progress: one live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from placer.launcher.node_events import Event, Output, State, Step, Warned
from placer.launcher.output import line_of, show_output
from placer.printable import legible
from placer.report.numbers import count, measured, size

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

REFRESH = 0.1
"""Least seconds between two drawings of the live table."""
LINE_EVERY = 1.0
"""Least seconds between two plain lines of steps."""
QUIET = 5.0
"""Seconds without a line after which the nodes' states are told."""


@dataclass(slots=True)
class Seen:
    """What is known of a run: each node's last state, the last step and evaluation."""

    nodes: Sequence[str]
    steps: int | None = None
    states: dict[str, State] = field(default_factory=dict)
    step: Step | None = None
    evaluated: Step | None = None

    def see(self, event: Event) -> None:
        if isinstance(event, State):
            self.states[event.node] = event
        elif isinstance(event, Step):
            self.step = event
            if event.eval is not None:
                self.evaluated = event

    def step_line(self) -> str:
        """The last step in one line."""
        step = self.step
        if step is None:
            return "no step yet"
        of = f" of {count(self.steps)}" if self.steps is not None else ""
        line = f"step {count(step.step)}{of}  epoch {step.epoch}"
        line += f"  {measured(step.metrics)}"
        if step.samples_per_second:
            line += f"  {count(step.samples_per_second)} samples/s"
        return line

    def evaluation_line(self) -> str:
        """The last evaluation in one line, nothing before the first."""
        if self.evaluated is None or self.evaluated.eval is None:
            return ""
        after = f"evaluation after step {count(self.evaluated.step)}"
        return f"{after}  {measured(self.evaluated.eval)}"

    def states_line(self) -> str:
        """What every node does and waits for, in one line."""
        parts = []
        for node in self.nodes:
            state = self.states.get(node)
            part = f"{node} {_shown(state) if state else 'starting'}"
            if state and state.waiting:
                part += f" (waits for {', '.join(state.waiting)})"
            parts.append(part)
        return "  ".join(parts)


@dataclass(slots=True)
class PlainLines:
    """Shows a run as lines of text: about one a second, and one per evaluation."""

    seen: Seen
    stream: TextIO
    clock: Callable[[], float] = time.monotonic
    _written: Step | None = None
    _last: float | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Output | Warned):
            show_output(event)
            return
        self.seen.see(event)
        now = self.clock()
        if self._last is None:
            self._last = now
        if isinstance(event, Step):
            first = self._written is None
            if first or event.eval is not None or now - self._last >= LINE_EVERY:
                self._write_step(now)
            if event.eval is not None:
                self._write(self.seen.evaluation_line(), now)
        elif isinstance(event, State) and now - self._last >= QUIET:
            self._write(self.seen.states_line(), now)

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *_: object) -> None:
        if self.seen.step is not self._written:
            self._write_step(self.clock())

    def _write_step(self, now: float) -> None:
        self._written = self.seen.step
        self._write(self.seen.step_line(), now)

    def _write(self, line: str, now: float) -> None:
        print(legible(line), file=self.stream, flush=True)
        self._last = now


@dataclass(slots=True)
class LiveTable:
    """Shows a run as one table that changes in place."""

    title: str
    seen: Seen
    console: Console
    _live: Live | None = None
    _drawn: float = 0.0

    def __enter__(self) -> LiveTable:
        from rich.live import Live

        self._live = Live(
            self.view(),
            console=self.console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._live is not None
        self._live.update(self.view(), refresh=True)
        self._live.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Output | Warned):
            self._show(event)
            return
        self.seen.see(event)
        now = time.monotonic()
        if self._live is not None and now - self._drawn >= REFRESH:
            self._drawn = now
            self._live.update(self.view(), refresh=True)

    def _show(self, event: Output | Warned) -> None:
        """Show what a node prints or warns of above the table, if both are on a
        terminal."""
        from rich.text import Text

        from placer.report.console import is_terminal

        if is_terminal(sys.stderr):
            self.console.print(Text(line_of(event)), soft_wrap=True)
        else:
            show_output(event)

    def view(self) -> RenderableType:
        """The table as it stands."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        head = Text(f"{self.title}  ", "bold").append(self.seen.step_line(), "not bold")
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("node", "state", "step", "sent", "waits for"):
            justify = "right" if name in ("step", "sent") else "left"
            table.add_column(name, justify=justify)  # type: ignore[arg-type]  # a word
        for node in self.seen.nodes:
            state = self.seen.states.get(node)
            if state is None:
                table.add_row(node, Text("starting", "dim"))
                continue
            table.add_row(
                node,
                Text(_shown(state), _STYLES.get(state.state, "")),
                count(state.step),
                size(state.bytes_sent),
                Text(", ".join(state.waiting), "yellow"),
            )
        parts: list[RenderableType] = [head, table]
        evaluation = self.seen.evaluation_line()
        if evaluation:
            parts.append(Text(evaluation))
        return Group(*parts)


def _shown(state: State) -> str:
    return f"{state.state}: {count(state.rows)}" if state.rows else state.state


_STYLES = {
    "joining": "yellow",
    "reading rows": "yellow",
    "compiling": "yellow",
    "running": "green",
    "evaluating": "cyan",
    "saving": "cyan",
    "writing": "cyan",
    "done": "dim",
}


def progress(
    title: str, nodes: Sequence[str], steps: int | None, stream: TextIO
) -> LiveTable | PlainLines:
    """What shows a run of these nodes on a stream; enter it, and give it the events."""
    from placer.report.console import console, is_terminal

    seen = Seen(nodes, steps)
    if is_terminal(stream):
        return LiveTable(title, seen, console(stream))
    return PlainLines(seen, stream)
