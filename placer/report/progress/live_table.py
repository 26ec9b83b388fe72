"""Shows a run on a terminal, updated in place."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placer.report.numbers import format_count, format_size
from placer.report.progress.view import (
    STARTING,
    TABLE_NUMBERS,
    RunView,
    checkpoint_text,
    node_rows,
    table_numbers,
    table_rows,
)
from placer.runtime.control.events import (
    BEFORE_FIRST_STEP,
    SAVING,
    STILL_WRITING,
    WAITING,
    Event,
    Message,
    Output,
    format_output,
    show_output,
)
from placer.runtime.control.table_counts import TableCounts

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

REFRESH_RATE = 10
"""Updates of the live table per second."""
WIDE = 70
"""A terminal with this many columns also shows bytes sent and the memory of sparse
tables."""


@dataclass(slots=True)
class LiveTable:
    """Shows a run within the height of the terminal.

    The lines show progress, metrics of the last step, what each node does, and
    evaluations. If the lines do not fit, nodes in the same state share a line, and the
    oldest evaluations are left out.
    """

    run: RunView
    console: Console
    _live: Live | None = None
    _ended: bool = False

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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._live is not None
        self._ended = kind is None
        self._live.stop()

    def __call__(self, event: Event) -> None:
        from rich.text import Text

        from placer.report.console import is_terminal

        self.run.update(event)
        if isinstance(event, Output | Message) and is_terminal(sys.stderr):
            # Print above the table.
            self.console.print(Text(format_output(event)), soft_wrap=True)
        else:
            show_output(event)

    def view(self) -> RenderableType:
        """Return the lines for the current state of the run."""
        from rich.console import Group

        head = list(self._head())
        tables = table_rows(self.run, max(1, self.console.height // 4))
        if tables:
            head.append(_sparse_tables(tables, wide=self.console.width >= WIDE))
        # The cursor occupies a line after the last one.
        room = max(0, self.console.height - 1 - len(head) - len(tables))
        if self._ended:
            return Group(*head, *self._evaluations(room))
        evaluations = len(self.run.evaluations) and len(self.run.evaluations) + 1
        for_nodes = 1 + len(self.run.nodes)
        if for_nodes + evaluations > room:
            for_nodes = max(room - evaluations, room // 2)
        nodes, lines = self._nodes(max(1, for_nodes - 1))
        return Group(*head, nodes, *self._evaluations(room - lines))

    def _head(self) -> Iterator[RenderableType]:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        run, width = self.run, self.console.width
        title = Text(f"{run.title}  ", "bold").append(run.position(), "not bold")
        title.truncate(width, overflow="ellipsis")
        yield title
        bar = Table.grid(padding=(0, 1))
        percent = Text(f"{run.share:4.0%}")
        bar.add_row(ProgressBar(1.0, run.share, width=max(1, width - 6)), percent)
        yield bar
        for fields in (run.times(), run.metrics()):
            for line in _fill(fields, width):
                yield Text(line, overflow="ellipsis", no_wrap=True)
        if run.checkpoint is not None:
            line = checkpoint_text(run.checkpoint)
            yield Text(line, "dim", overflow="ellipsis", no_wrap=True)

    def _nodes(self, most: int) -> tuple[RenderableType, int]:
        """Return a table of nodes with at most this many rows, and its height."""
        from rich.text import Text

        from placer.report.console import grid

        wide = self.console.width >= WIDE
        names = ("node", "state", "step", *(("sent",) if wide else ()), "waits for")
        table = grid(*names, numbers=("step", "sent"))
        for column in table.columns:
            column.no_wrap = True
        rows = node_rows(self.run, most)
        for row in rows:
            sent = format_size(row.bytes_sent) if row.steps else ""
            table.add_row(
                row.nodes,
                Text(row.state, _STYLES.get(row.state.partition(":")[0], "")),
                row.step,
                *((sent,) if wide else ()),
                Text(row.waiting, "yellow"),
            )
        return table, len(rows) + 1

    def _evaluations(self, room: int) -> Iterator[RenderableType]:
        """Yield a table of the newest evaluations, in at most `room` lines."""
        from rich.text import Text

        from placer.report.console import grid

        steps, left_out = list(self.run.evaluations), 0
        if len(steps) >= room:  # The head of the table takes one line.
            left_out = max(0, len(steps) - max(0, room - 2))
        if not steps[left_out:]:
            return
        metrics = tuple(steps[-1].eval or {})
        names = ("evaluation after step", "epoch", *metrics)
        table = grid(*names, numbers=names)
        for column in table.columns:
            column.no_wrap = True
        if left_out:
            table.add_row(Text(f"{format_count(left_out)} before", "dim"))
        for step in steps[left_out:]:
            values = (step.eval or {}).values()
            table.add_row(
                format_count(step.step),
                format_count(step.epoch),
                *(f"{value:.4g}" for value in values),
            )
        yield table


def _sparse_tables(
    rows: Sequence[tuple[str, TableCounts]], *, wide: bool
) -> RenderableType:
    from placer.report.console import grid

    names = TABLE_NUMBERS if wide else TABLE_NUMBERS[:-1]
    view = grid("table", *names, numbers=names)
    for column in view.columns:
        column.no_wrap = True
    for name, counts in rows:
        view.add_row(name, *table_numbers(counts)[: len(names)])
    return view


def _fill(fields: Iterable[str], width: int) -> Iterator[str]:
    """Yield lines of at most `width` characters, with as many fields on each as fit."""
    line = ""
    for field in fields:
        if line and len(line) + 2 + len(field) > width:
            yield line
            line = ""
        line += f"  {field}" if line else field
    if line:
        yield line


_STYLES = {
    STARTING: "dim",
    **dict.fromkeys(BEFORE_FIRST_STEP, "yellow"),
    "running": "green",
    WAITING: "yellow",
    **dict.fromkeys(("evaluating", SAVING, STILL_WRITING, "writing"), "cyan"),
    "done": "dim",
}
