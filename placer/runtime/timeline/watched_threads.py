"""Records how the threads of a node wait for each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from placer.runtime.timeline.recorder import Recorder, now
from placer.runtime.timeline.traced_channel import SHORTEST_WAIT


class WatchedThreads:
    """Records the waits at one condition of a node.

    Args:
        recorder: the recorder of the node.
        node: the name of the node.
    """

    def __init__(self, recorder: Recorder, node: str) -> None:
        self._recorder, self._node = recorder, node
        self._notified: tuple[int, int] | None = None
        """The track of the thread that notified last, and the time."""

    def notifies(self) -> None:
        """Note that this thread wakes waiting threads."""
        if self._recorder.active:
            track = self._recorder.own_track
            self._notified = None if track is None else (track, now())

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Return a context manager that records a wait."""
        start = now()
        try:
            yield
        finally:
            end = now()
            if end - start >= SHORTEST_WAIT:
                woken = self._notified
                if woken is not None and woken[1] < start:
                    woken = None
                self._recorder.add_thread_wait(self, self._node, start, end, woken)
