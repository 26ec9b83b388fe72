"""Chooses how to show the progress of a run."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TextIO, TypeAlias

from placer.report.console import console, is_terminal
from placer.report.progress.live_table import LiveTable
from placer.report.progress.notebook import NotebookOutput, in_notebook
from placer.report.progress.plain_lines import PlainLines
from placer.report.progress.view import RunView
from placer.runtime.control.events import (
    Event,
    FewerNodes,
    NodeWarning,
    Recovered,
    Report,
    Resumed,
    show_output,
)

Progress: TypeAlias = AbstractContextManager[Report]
"""A context manager that shows a run. Call its value with each event."""


def show_progress(run: RunView, stream: TextIO) -> Progress:
    """Return a live table on a terminal, and lines of text elsewhere."""
    if is_terminal(stream):
        return LiveTable(run, console(stream))
    return PlainLines(run, stream)


def show_progress_of_script(run: RunView, progress: bool | None) -> Progress | None:
    """Return the display that `placer.launch` uses for a run; None for no display.

    In a notebook it is an output of the cell. Elsewhere it writes to standard error,
    because standard output belongs to the script.

    Args:
        run: The run to show.
        progress: Whether to show progress; None means only on a terminal or in a
            notebook.
    """
    if progress is False:
        return None
    if in_notebook():
        return NotebookOutput(run)
    if progress or is_terminal(sys.stderr):
        return show_progress(run, sys.stderr)
    return None


def show_warnings(event: Event) -> None:
    """Print an event to standard error if it is a warning, or about a failure or left-out
    rows."""
    is_resumed = isinstance(event, Resumed) and event.warns
    if is_resumed or isinstance(event, NodeWarning | Recovered | FewerNodes):
        show_output(event)
