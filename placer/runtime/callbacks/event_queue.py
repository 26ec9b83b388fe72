"""The events of a node on their way to its launcher."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from placer.errors import RunError
from placer.runtime.control.events import Event, NodeWarning, State, write_event
from placer.system.worker import Worker

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
        self._worker = Worker(self._write_next, "placer events", bound=MAX_PENDING)
        self._worker.start()

    def __call__(self, event: Event) -> None:
        """Report an event. After `close`, or once `write` has failed, events are
        dropped."""
        self.offer(event)

    def offer(self, event: Event) -> bool:
        """Report an event; return False if it is dropped."""
        line = write_event(event)
        if isinstance(event, State):
            self._worker.discard(lambda each: _is_state_of(event, each[0]))
        waits = not isinstance(event, State | NodeWarning)
        return self._worker.offer((event, line), waits=waits)

    def close(self, seconds: float | None, last: Event | None = None) -> None:
        """Wait until all events and `last` are written, or `write` has failed; at most
        for `seconds`, if that is not None.

        `last` is queued even if the queue is full, because the caller must not wait for
        a launcher that does not read.
        """
        if last is not None:
            self._worker.offer((last, write_event(last)), waits=False)
        self._worker.close(seconds)

    # Run by the thread.

    def _write_next(self, pending: tuple[Event, bytes]) -> None:
        event, line = pending
        try:
            self._write(line)
        except (OSError, RunError):
            rest = self._worker.drop()
            self._on_broken([event, *(each for each, _ in rest)])


def _is_state_of(state: State, event: Event) -> bool:
    """Whether an event is a state of the same node."""
    return isinstance(event, State) and event.node == state.node
