"""Queues the events of a node and writes them to its launcher."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from placer.errors import RunError
from placer.runtime.control.events import Event, NodeWarning, State, write_event
from placer.system.worker import Worker

MAX_PENDING: Final = 1024
"""The largest number of queued events. If the queue is full, the caller waits."""


def write_all(fd: int, line: bytes) -> None:
    """Write a whole line to a blocking file descriptor."""
    while line:
        line = line[os.write(fd, line) :]


class EventQueue:
    """Writes the lines of events in order, in a separate thread.

    A slow reader therefore does not delay the node. A new state replaces the queued state of
    the same node; other events are appended. States and warnings never block, because the
    thread of the channel reports them and must not wait.

    Args:
        write: writes a line, and waits for a slow reader. If the reader is gone, it raises
            OSError or RunError and is not called again.
        on_broken: called once, in the queue's thread, when `write` has failed. The argument
            is the list of events that were not written.
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
        """Report an event. Events after `close` or a failure of `write` are dropped."""
        self.offer(event)

    def offer(self, event: Event) -> bool:
        """Report an event; return False if it was dropped."""
        line = write_event(event)
        if isinstance(event, State):
            self._worker.discard(lambda each: _is_state_of(event, each[0]))
        waits = not isinstance(event, State | NodeWarning)
        return self._worker.offer((event, line), waits=waits)

    def close(self, seconds: float | None, last: Event | None = None) -> None:
        """Wait until all events are written or `write` has failed.

        Args:
            seconds: the longest time to wait; None waits without a limit.
            last: a last event. It is queued even if the queue is full, because the caller
                must not wait for a launcher that does not read.
        """
        if last is not None:
            self._worker.offer((last, write_event(last)), waits=False)
        self._worker.close(seconds)

    # The thread runs this method.

    def _write_next(self, pending: tuple[Event, bytes]) -> None:
        event, line = pending
        try:
            self._write(line)
        except (OSError, RunError):
            rest = self._worker.drop()
            self._on_broken([event, *(each for each, _ in rest)])


def _is_state_of(state: State, event: Event) -> bool:
    """Whether an event is a state of the same node as `state`."""
    return isinstance(event, State) and event.node == state.node
