"""What a node tells its launcher: JSON lines on a pipe (or to nobody)."""

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
"""Takes one event; see `placer.launcher` for what is made of them."""

BEHIND: Final = 1024
"""Events that may wait to be written; then whoever reports another one waits."""


READING: Final = "reading rows"
"""The state in which a node reads its sources; the report has the number of rows."""
STOPPING: Final = (
    "interrupted: all nodes stop after the same step and save; another signal ends them"
    " at once"
)
"""What is said when a signal lets a run save its parameters."""


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Metrics as JSON has numbers: what is not finite is null."""
    return {k: v if math.isfinite(v) else None for k, v in metrics.items()}


def nobody(event: dict[str, Any]) -> None:
    """The report of a node that no launcher watches: warnings go to standard error."""
    if event["event"] == "warning":
        print(f"warning: {event['message']}", file=sys.stderr, flush=True)


class Pipe:
    """Writes events to a pipe's end, in their order, in a thread of its own.

    A launcher that reads slowly holds nobody up: of the states that wait to be written
    only the newest is, and all else waits its turn. A broken pipe means that the
    launcher is gone: `on_broken` is then called, once, in that thread.
    """

    def __init__(self, fd: int, on_broken: Callable[[], None]) -> None:
        self._fd = fd
        self._on_broken = on_broken
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(
            target=self._run, name="placer pipe", daemon=True
        )
        self._thread.start()

    def __call__(self, event: dict[str, Any]) -> None:
        """Report an event; after `close`, or once the pipe is broken, to nobody."""
        kind, line = event["event"], _line(event)
        with self._changed:
            if kind == "state":
                for older in [each for each in self._waiting if each[0] == kind]:
                    self._waiting.remove(older)
            else:
                self._changed.wait_for(
                    lambda: len(self._waiting) < BEHIND or not self._open
                )
            if self._open:
                self._waiting.append((kind, line))
                self._changed.notify_all()

    def close(self, seconds: float, last: dict[str, Any] | None = None) -> None:
        """Wait until all that was reported is written, `last` too, but no longer."""
        with self._changed:
            if last is not None and self._open:
                self._waiting.append((last["event"], _line(last)))
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
        """The next line to write; None once there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._open)
            if not self._waiting:
                return None
            _, line = self._waiting.popleft()
            self._changed.notify_all()
            return line


def _line(event: Mapping[str, Any]) -> bytes:
    return (json.dumps(event) + "\n").encode()
