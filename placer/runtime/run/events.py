"""The events that a node reports to its launcher: JSON lines on a pipe."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

Report = Callable[[dict[str, Any]], None]
"""Receives one event; `placer.launcher` handles them."""

MAX_PENDING: Final = 1024
"""The most events that may wait to be written; then the caller waits."""


READING: Final = "reading rows"
"""The state of a node that reads its sources; its events have the number of rows."""
STOPPING: Final = (
    "interrupted: all nodes stop after the same step and save; another signal ends them"
    " at once"
)
"""The warning when a signal stops a run that can still save its parameters."""


def null_if_not_finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Replace metrics that are not finite by None, because JSON has no such numbers."""
    return {k: v if math.isfinite(v) else None for k, v in metrics.items()}


def print_warnings(event: dict[str, Any]) -> None:
    """Print warnings to standard error: the report of a node without a launcher."""
    if event["event"] == "warning":
        print(f"warning: {event['message']}", file=sys.stderr, flush=True)


class EventPipe:
    """Writes events to a pipe in order, in a thread of its own.

    A launcher that reads slowly does not delay the node: of the states in the queue
    only the newest is kept, and other events are queued. A broken pipe means that the
    launcher has ended.

    Args:
        fd: the file descriptor of the pipe's end.
        on_broken: called once, in the pipe's thread, if the pipe is broken.
    """

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd = fd
        self._on_broken = on_broken
        self._pending: deque[tuple[str, bytes]] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(
            target=self._run, name="placer pipe", daemon=True
        )
        self._thread.start()

    def __call__(self, event: dict[str, Any]) -> None:
        """Report an event. After `close`, or once the pipe is broken, events are
        dropped."""
        kind, line = event["event"], _line(event)
        with self._changed:
            if kind == "state":
                for older in [queued for queued in self._pending if queued[0] == kind]:
                    self._pending.remove(older)
            else:
                self._changed.wait_for(
                    lambda: len(self._pending) < MAX_PENDING or not self._open
                )
            if self._open:
                self._pending.append((kind, line))
                self._changed.notify_all()

    def close(self, seconds: float, last: dict[str, Any] | None = None) -> None:
        """Wait until all events and `last` are written, at most for `seconds`.

        `last` is queued even if the queue is full, because the caller must not wait for
        a launcher that does not read.
        """
        with self._changed:
            if last is not None and self._open:
                self._pending.append((last["event"], _line(last)))
            self._open = False
            self._changed.notify_all()
        self._thread.join(seconds)

    def _run(self) -> None:
        while (line := self._next()) is not None:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:
                with self._changed:
                    self._open = False
                    self._changed.notify_all()
                self._on_broken()
                return

    def _next(self) -> bytes | None:
        """Return the next line to write; None once the pipe is closed and all are
        written."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or not self._open)
            if not self._pending:
                return None
            _, line = self._pending.popleft()
            self._changed.notify_all()
            return line


def _line(event: Mapping[str, Any]) -> bytes:
    return (json.dumps(event) + "\n").encode()
