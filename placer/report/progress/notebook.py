"""Shows a run in a notebook: one output of the cell, updated in place."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from typing import Any

from placer.report.numbers import format_count, format_size
from placer.report.progress.sparkline import BLOCKS
from placer.report.progress.view import (
    RunView,
    checkpoint_text,
    class_rows,
    node_rows,
    publication_text,
    table_columns,
    table_rows,
)
from placer.runtime.control.events import Event, show_output
from placer.system.printable import make_printable

UPDATE_EVERY = 0.5
"""Shortest time between two updates, in seconds."""
MOST_NODES = 16
"""Largest number of nodes, and of sparse tables, with separate rows."""
MOST_EVALUATIONS = 50
"""Largest number of evaluations shown: the newest ones."""


def in_notebook() -> bool:
    """Return True if this process is the kernel of a notebook, which can display
    HTML.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # The shell of a terminal has no kernel.
    return getattr(shell, "kernel", None) is not None


@dataclass(slots=True)
class NotebookOutput:
    """Shows a run as HTML, or as text where HTML cannot be displayed."""

    run: RunView
    _display: Any = None
    _updated: float = 0.0

    def __enter__(self) -> NotebookOutput:
        display = import_module("IPython.display").display
        content = self._content(ended=False)
        self._display = display(content, raw=True, display_id=True)
        self._updated = self.run.clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.run.passes.finish(self.run.states)
        self._display.update(self._content(ended=kind is None), raw=True)

    def __call__(self, event: Event) -> None:
        show_output(event)
        self.run.update(event)
        now = self.run.clock()
        if now - self._updated >= UPDATE_EVERY:
            self._updated = now
            self._display.update(self._content(ended=False), raw=True)

    def _content(self, *, ended: bool) -> dict[str, str]:
        tables = [_node_table(self.run, ended=ended)]
        if sparse := table_rows(self.run, MOST_NODES):
            columns = table_columns(sparse)
            tables.append([tuple(columns), *zip(*columns.values(), strict=True)])
        if self.run.evaluations:
            tables.append(_evaluation_table(self.run))
        run = self.run
        lines = [f"{run.title}  {run.position()}"]
        lines += ["  ".join((*run.times(), *run.rates()))]
        lines += ["  ".join((*run.metrics(BLOCKS), run.learning_rates()))]
        lines += filter(None, [run.passes.about(), run.waiting()])
        lines += filter(None, [run.best_text(), run.recovery()])
        lines += map("  ".join, run.passes.lines)
        lines += filter(None, [run.counts_since()])
        if run.checkpoint is not None:
            lines.append(checkpoint_text(run.checkpoint))
        if run.publication is not None:
            lines.append(publication_text(run.publication))
        if folder := run.folder_text():
            lines.append(f"the run's folder is {folder}")
        return {
            "text/html": make_printable("".join(_html(self.run, lines, tables))),
            "text/plain": "\n".join(map(make_printable, _text(lines, tables))),
        }


_Rows = Sequence[Sequence[str]]
"""A table: the head, then the rows."""


def _node_table(run: RunView, *, ended: bool) -> _Rows:
    rows = [("node", "state", "step", "sent", "waits", "mostly for")]
    for row in class_rows(run)[:MOST_NODES] if ended else node_rows(run, MOST_NODES):
        sent = format_size(row.bytes_sent) if row.steps else ""
        rows.append((row.nodes, row.state, row.step, sent, row.share, row.waits_for))
    return rows


def _evaluation_table(run: RunView) -> _Rows:
    names = tuple(run.evaluations[-1].eval or {})
    epoch = "pass" if run.is_stream else "epoch"
    rows: list[tuple[str, ...]] = [("evaluation after step", epoch, *names)]
    steps = run.evaluations[-MOST_EVALUATIONS:]
    if left_out := len(run.evaluations) - len(steps):
        rows.append((f"{format_count(left_out)} before", *("" for _ in rows[0][1:])))
    for step in steps:
        values = (f"{value:.4g}" for value in (step.eval or {}).values())
        rows.append((format_count(step.step), format_count(step.epoch), *values))
    return rows


def _html(run: RunView, lines: Sequence[str], tables: Sequence[_Rows]) -> Iterator[str]:
    title, *others = lines
    yield f'<div><b>{escape(title)}</b></div><progress value="{run.share:.4f}" max="1"'
    yield ' style="width: 100%"></progress>'
    for line in others:
        yield f'<div style="white-space: pre-wrap">{escape(line)}</div>'
    for head, *rows in tables:
        yield "<table><tr>"
        yield from (f"<th>{escape(cell)}</th>" for cell in head)
        for row in rows:
            yield "</tr><tr>"
            yield from (f"<td>{escape(cell)}</td>" for cell in row)
        yield "</tr></table>"


def _text(lines: Sequence[str], tables: Sequence[_Rows]) -> Iterator[str]:
    yield from filter(None, lines)
    for rows in tables:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (f"{c:{w}}" for c, w in zip(row, widths, strict=True))
            yield "  ".join(cells).rstrip()
