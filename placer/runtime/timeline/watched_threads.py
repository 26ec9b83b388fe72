"""Records how the threads of a node wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from placer.runtime.timeline.recorder import Recorder, now
from placer.runtime.timeline.traced_channel import SHORTEST_WAIT


@dataclass(slots=True, eq=False)
class _Wait:
    """A wait that is in progress.

    Attributes:
        woken: the track of the thread that has ended the wait, and the time. The waiting
            thread may get the lock later, after more changes.
    """

    woken: tuple[int, int] | None = None


class WatchedThreads:
    """Records the waits at one condition of a node.

    Args:
        recorder: the recorder of the node.
        node: the name of the node.
    """

    def __init__(self, recorder: Recorder, node: str) -> None:
        self._recorder, self._node = recorder, node
        self._waits: list[_Wait] = []

    def notifies(self) -> None:
        """Note that this thread wakes all waiting threads."""
        if self._waits and (track := self._recorder.own_track) is not None:
            woken = track, now()
            for wait in self._waits:
                wait.woken = wait.woken or woken

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Return a context manager that records a wait."""
        wait = _Wait()
        self._waits.append(wait)
        start = now()
        try:
            yield
        finally:
            end = now()
            self._waits.remove(wait)
            if end - start >= SHORTEST_WAIT:
                self._recorder.add_thread_wait(self, self._node, start, end, wait.woken)
