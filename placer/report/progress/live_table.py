"""Shows a run on a terminal, updated in place."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from placer.report.numbers import format_count, format_size
from placer.report.progress.sparkline import ASCII, BLOCKS
from placer.report.progress.view import (
    RECOVERING,
    STARTING,
    NodeRow,
    RunView,
    checkpoint_text,
    class_rows,
    fill_lines,
    node_rows,
    publication_text,
    table_columns,
    table_rows,
)
from placer.runtime.control.events import (
    BEFORE_FIRST_STEP,
    DONE,
    RUNNING,
    SAVING,
    STILL_WRITING,
    WAITING,
    WAITING_IN_STREAM,
    WRITING,
    Event,
    Message,
    Output,
    format_output,
    show_output,
)
from placer.runtime.control.table_counts import TableCounts
from placer.system.printable import make_printable

if TYPE_CHECKING:
    from rich.console import Console, OverflowMethod, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

REFRESH_RATE = 10
"""Updates of the live table per second."""
WAIT_REFRESH: Final = 10.0
"""Seconds between two updates while the run waits for a file, to save CPU time."""
RESULT_LINES: Final = 11
"""Lines that are left for the result below the table after the run."""
_BAR: Final = 10
"""The characters of the bar for a share of waiting."""
SIDE_BY_SIDE: Final = 120
"""A terminal with this many columns shows the evaluations next to the nodes."""
_UNBOUNDED: Final = 10_000
_LEAST_NAME: Final = 8
"""The least width of the names of sparse tables."""
_GAP: Final = 4
"""The spaces between the nodes and the evaluations next to them."""


@dataclass(slots=True)
class LiveTable:
    """Shows a run within the height of the terminal.

    The lines show progress, metrics of the last step, the state and the waiting of each
    node, and evaluations. If the lines do not fit, nodes in the same state share a line,
    and the oldest evaluations are left out. After the run, nodes with the same program
    share a line.
    """

    run: RunView
    console: Console
    _live: Live | None = None
    _ended: bool = False
    _waited_at: float | None = None

    def __enter__(self) -> LiveTable:
        self._live = _live_of(self)(
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
        self.run.passes.finish(self.run.states)
        self._print_passes()
        self._ended, self._waited_at = kind is None, None
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
        self._print_passes()

    def _print_passes(self) -> None:
        """Print the lines of ended passes above the table."""
        from rich.text import Text

        for fields in self.run.passes.take_lines():
            lines = fill_lines(map(make_printable, fields), self.console.width - 4)
            self.console.print(Text("\n    ".join(lines)), soft_wrap=True)

    def is_due(self) -> bool:
        """Return whether an update is due."""
        now, before = self.run.clock(), self._waited_at
        waits = self.run.waiting() != ""
        if waits and before is not None and now - before < WAIT_REFRESH:
            return False
        self._waited_at = now if waits else None
        return True

    def view(self) -> RenderableType:
        """Return the lines for the current state of the run."""
        from rich.console import Group

        head = list(self._head())
        tables = table_rows(self.run, max(1, self.console.height // 4))
        if tables:
            if since := self.run.counts_since():
                head.append(self._line(since, "dim"))
            head.append(self._sparse_tables(tables))
        # The cursor occupies a line after the last one.
        room = max(0, self.console.height - 1 - len(head) - len(tables))
        if self._ended:
            room = max(0, room - RESULT_LINES)
        if beside := self._side_by_side(room):
            return Group(*head, beside)
        evaluations = len(self.run.evaluations) and len(self.run.evaluations) + 1
        for_nodes = 1 + len(self.run.nodes)
        if self._ended:
            for_nodes = room
        elif for_nodes + evaluations > room:
            for_nodes = max(room - evaluations, room // 2)
        rows = self._rows(for_nodes)
        if not rows:
            return Group(*head, *self._evaluations(room))
        return Group(*head, self._nodes(rows), *self._evaluations(room - len(rows) - 1))

    def _rows(self, room: int) -> list[NodeRow]:
        """Return the rows of a table of nodes that fits in `room` lines. After the run,
        return a row for each class of nodes, if their waiting is known."""
        most = max(1, room - 1)
        if not self._ended:
            return node_rows(self.run, most)
        return [row for row in class_rows(self.run) if row.shares][:most]

    def _side_by_side(self, room: int) -> Table | None:
        """Return the nodes and the evaluations next to each other; None if the terminal
        is too narrow."""
        from rich.table import Table

        if self.console.width < SIDE_BY_SIDE:
            return None
        rows, right = self._rows(room), [*self._evaluations(room)]
        if not rows or not right:
            return None
        nodes = self._nodes(rows)
        width = sum(self._width(table) for table in (nodes, *right)) + _GAP
        if width > self.console.width or len(rows) >= room:
            return None
        both = Table.grid(padding=(0, _GAP, 0, 0))
        both.add_row(nodes, *right)
        return both

    def _width(self, table: Table) -> int:
        unbounded = self.console.options.update(max_width=_UNBOUNDED)
        return self.console.measure(table, options=unbounded).maximum

    @property
    def _overflow(self) -> OverflowMethod:
        return "crop" if self.console.options.ascii_only else "ellipsis"

    def _line(self, text: str, style: str = "") -> Text:
        from rich.text import Text

        return Text(text, style, overflow=self._overflow, no_wrap=True)

    def _head(self) -> Iterator[RenderableType]:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        run, width = self.run, self.console.width
        yield self._title()
        times = ", ".join(run.times())
        end = self._line(run.share_text() + times)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(1.0, run.share, width=max(1, width - len(end) - 1)), end
        )
        yield bar
        levels = ASCII if self.console.options.ascii_only else BLOCKS
        for fields in (
            (*run.metrics(levels), *run.rates()),
            (run.learning_rates(), run.staleness(), run.geo_staleness()),
            (run.best_text(),),
            (run.passes.about(),),
        ):
            for line in fill_lines(fields, width):
                yield self._line(line)
        if run.checkpoint is not None:
            yield self._line(checkpoint_text(run.checkpoint), "dim")
        if run.publication is not None:
            yield self._line(publication_text(run.publication), "dim")
        for text in filter(None, (run.recovery(), run.waiting())):
            yield self._line(text, "yellow")

    def _title(self) -> Text:
        """Return the model and the position, and the run's folder at the right."""
        from rich.cells import cell_len
        from rich.text import Text

        run, width = self.run, self.console.width
        title = Text(f"{run.title}  ", "bold").append(run.position(), "not bold")
        title.no_wrap, title.overflow = True, self._overflow
        room = width - title.cell_len - 2
        folder = run.folder_text()
        for text in (folder, Path(folder).name):
            if text and cell_len(text) <= room:
                title.append(" " * (room + 2 - cell_len(text)))
                return title.append(text, "not bold dim")
        return title

    def _nodes(self, rows: Sequence[NodeRow]) -> Table:
        """Return a table of nodes. On a narrow terminal, columns are left out."""
        for columns in (("sent", "bar"), ("bar",), ()):
            table = self._node_table(rows, columns)
            if self._width(table) <= self.console.width:
                break
        return table

    def _node_table(self, rows: Sequence[NodeRow], columns: Collection[str]) -> Table:
        from rich.text import Text

        from placer.report.console import grid

        has_shares = any(row.shares for row in rows)
        names = ["node", *(() if self._ended else ("state",)), "step"]
        names += ["sent"] if "sent" in columns else []
        names += ["waits", "mostly for"] if has_shares else ["waits for"]
        table = grid(*names, numbers=("step", "sent"))
        for column in table.columns:
            column.no_wrap, column.overflow = True, self._overflow
        for row in rows:
            cells: Mapping[str, str | Text] = {
                "node": row.nodes,
                "state": Text(row.state, _STYLES.get(row.state.partition(":")[0], "")),
                "step": row.step,
                "sent": format_size(row.bytes_sent) if row.steps else "",
                "waits": self._share(row, bar="bar" in columns),
                "mostly for": Text(row.waits_for, "yellow"),
                "waits for": Text(row.waits_for, "yellow"),
            }
            table.add_row(*(cells[name] for name in names))
        return table

    def _share(self, row: NodeRow, *, bar: bool) -> Text:
        from rich.text import Text

        if row.shares is None:
            return Text()
        if not bar:
            return Text(row.share)
        full, empty = "#." if self.console.options.ascii_only else "█░"
        filled = round(row.shares[1] * _BAR)
        text = Text(full * filled, "yellow").append(empty * (_BAR - filled), "dim")
        return text.append(f" {row.share}", "none")

    def _sparse_tables(self, rows: Sequence[tuple[str, TableCounts]]) -> Table:
        """Return a table of sparse tables. On a narrow terminal, columns are left out, and
        then names are shortened."""
        from rich.cells import cell_len

        from placer.report.console import grid

        columns = table_columns(rows)
        for left_out in ("", "memory", "refused", "counted", "hit rate"):
            columns.pop(left_out, None)
            view = grid(*columns, numbers=[*columns][1:])
            for column in view.columns:
                column.no_wrap = True
            for cells in zip(*columns.values(), strict=True):
                view.add_row(*cells)
            if self._width(view) <= self.console.width:
                return view
        names = view.columns[0]
        names.overflow = self._overflow
        others = self._width(view) - max(map(cell_len, columns["table"]))
        names.max_width = max(_LEAST_NAME, self.console.width - others)
        return view

    def _evaluations(self, room: int) -> Iterator[Table]:
        """Yield a table of the newest evaluations, in at most `room` lines."""
        from rich.text import Text

        from placer.report.console import grid

        steps, left_out = list(self.run.evaluations), 0
        if len(steps) >= room:  # The head of the table takes one line.
            left_out = max(0, len(steps) - max(0, room - 2))
        if not steps[left_out:]:
            return
        metrics = tuple(steps[-1].eval or {})
        epoch = "pass" if self.run.is_stream else "epoch"
        names = ("evaluation after step", epoch, *metrics)
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
                style="bold" if step is self.run.best else None,
            )
        yield table


_STYLES = {
    STARTING: "dim",
    **dict.fromkeys(BEFORE_FIRST_STEP, "yellow"),
    RUNNING: "green",
    **dict.fromkeys((WAITING, *WAITING_IN_STREAM, RECOVERING), "yellow"),
    **dict.fromkeys(("evaluating", SAVING, STILL_WRITING, WRITING), "cyan"),
    DONE: "dim",
}


def _live_of(table: LiveTable) -> type[Live]:
    """Return a `Live` that leaves out updates that are not due."""
    from rich.live import Live

    class DueLive(Live):
        def refresh(self) -> None:
            if table.is_due():
                super().refresh()

    return DueLive
