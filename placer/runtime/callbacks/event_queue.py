"""The events of a node on their way to its launcher."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from placer.errors import RunError
from placer.runtime.control.events import Event, NodeWarning, State, write_event

MAX_PENDING: Final = 1024
"""The most events that may wait to be written; then the caller waits."""


def write_all(fd: int, line: bytes) -> None:
    """Write a line to a descriptor that blocks."""
    while line:
        line = line[os.write(fd, line) :]


class EventQueue:
    """Writes the lines of events in order, in a thread of its own.

    A reader that is slow does not delay the node: of the states of a node in the queue
    only the newest is kept, and other events are queued. The thread of the channel,
    which must not wait, reports states and warnings: these always find room.

    Args:
        write: writes a line, and waits for a reader that is slow. It raises OSError or
            RunError if there is no reader any more, and is not called again then.
        on_broken: called once, in the queue's thread, if `write` has failed, with the
            events that are not written.
    """

    def __init__(
        self,
        write: Callable[[bytes], None],
        on_broken: Callable[[Sequence[Event]], None],
    ) -> None:
        self._write = write
        self._on_broken = on_broken
        self._pending: deque[tuple[Event, bytes]] = deque()
        self._changed = threading.Condition()
        self._open = True
        self._thread = threading.Thread(
            target=self._run, name="placer events", daemon=True
        )
        self._thread.start()

    def __call__(self, event: Event) -> None:
        """Report an event. After `close`, or once `write` has failed, events are
        dropped."""
        self.offer(event)

    def offer(self, event: Event) -> bool:
        """Report an event; return False if it is dropped."""
        line = write_event(event)
        with self._changed:
            if isinstance(event, State):
                self._pending = deque(
                    each for each in self._pending if not _is_state_of(event, each[0])
                )
            elif not isinstance(event, NodeWarning):
                self._changed.wait_for(
                    lambda: len(self._pending) < MAX_PENDING or not self._open
                )
            if self._open:
                self._pending.append((event, line))
                self._changed.notify_all()
            return self._open

    def close(self, seconds: float | None, last: Event | None = None) -> None:
        """Wait until all events and `last` are written, or `write` has failed; at most
        for `seconds`, if that is not None.

        `last` is queued even if the queue is full, because the caller must not wait for
        a launcher that does not read.
        """
        with self._changed:
            if last is not None and self._open:
                self._pending.append((last, write_event(last)))
            self._open = False
            self._changed.notify_all()
        self._thread.join(seconds)

    def _run(self) -> None:
        while (following := self._next()) is not None:
            event, line = following
            try:
                self._write(line)
            except (OSError, RunError):
                with self._changed:
                    self._open = False
                    rest = [event, *(each for each, _ in self._pending)]
                    self._changed.notify_all()
                self._on_broken(rest)
                return

    def _next(self) -> tuple[Event, bytes] | None:
        """Return what is next to write; None once the queue is closed and all are
        written."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or not self._open)
            if not self._pending:
                return None
            following = self._pending.popleft()
            self._changed.notify_all()
            return following


def _is_state_of(state: State, event: Event) -> bool:
    """Whether an event is a state of the same node."""
    return isinstance(event, State) and event.node == state.node
