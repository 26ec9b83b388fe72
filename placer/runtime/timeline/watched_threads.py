"""Records how the threads of a node wait for each other."""

from __future__ import annotations

import threading

from placer.runtime.timeline.recorder import Recorder, now
from placer.runtime.timeline.traced_channel import SHORTEST_WAIT


class WatchedThreads:
    """Records the waits at one condition.

    The methods replace the methods of the condition. Other conditions cost nothing.

    Args:
        condition: the condition.
        recorder: the recorder of the node.
        node: the name of the node.
    """

    def __init__(
        self, condition: threading.Condition, recorder: Recorder, node: str
    ) -> None:
        self._recorder, self._node = recorder, node
        self._wait, self._notify_all = condition.wait, condition.notify_all
        self._notified: tuple[int, int] | None = None
        """The track of the thread that notified last, and the time."""
        vars(condition).update(wait=self.wait, notify_all=self.notify_all)

    def notify_all(self) -> None:
        """Wake all waiting threads, and note who wakes them."""
        track = self._recorder.own_track
        self._notified = None if track is None else (track, now())
        self._notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as `Condition.wait`, and record the wait.

        The last notification during the wait counts as its end. Earlier notifications may
        be irrelevant for this thread.
        """
        start = now()
        try:
            return self._wait(timeout)
        finally:
            end, woken = now(), self._notified
            if woken is not None and woken[1] < start:
                woken = None
            if end - start >= SHORTEST_WAIT:
                self._recorder.add_thread_wait(self, self._node, start, end, woken)
