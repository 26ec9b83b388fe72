"""The pipe on which a node reports events to its launcher."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from placer.runtime.run.events import Event, State, write_event

MAX_PENDING: Final = 1024
"""The most events that may wait to be written; then the caller waits."""


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
        self._pending: deque[tuple[type[Event], bytes]] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(
            target=self._run, name="placer pipe", daemon=True
        )
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Report an event. After `close`, or once the pipe is broken, events are
        dropped."""
        kind, line = type(event), write_event(event)
        with self._changed:
            if kind is State:
                others = (queued for queued in self._pending if queued[0] is not State)
                self._pending = deque(others)
            else:
                self._changed.wait_for(
                    lambda: len(self._pending) < MAX_PENDING or not self._open
                )
            if self._open:
                self._pending.append((kind, line))
                self._changed.notify_all()

    def close(self, seconds: float | None, last: Event | None = None) -> None:
        """Wait until all events and `last` are written, or the pipe is broken; at most
        for `seconds`, if that is not None.

        `last` is queued even if the queue is full, because the caller must not wait for
        a launcher that does not read.
        """
        with self._changed:
            if last is not None and self._open:
                self._pending.append((type(last), write_event(last)))
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
