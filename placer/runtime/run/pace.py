"""The pace of a run with callbacks: its steps wait for a callback that is slower."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

MAX_LEAD: Final = 8
"""The most steps that the nodes are ahead of the callbacks: enough for a callback that is
fast to delay no step."""
CHECK: Final = 0.2
"""Seconds between two checks for a failure of the run while a step waits."""


class Pace:
    """Lets a run be at most `MAX_LEAD` steps ahead of its callbacks.

    The control node waits before a step. In lockstep, the other nodes then wait for it.
    Nodes that are threads of one process share a pace, and each of them waits.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reported = self._called = 0
        self._released = False

    def step_reported(self) -> None:
        """Note that the next step is on its way to the callbacks."""
        with self._changed:
            self._reported += 1

    def steps_called(self, count: int = 1) -> None:
        """Note that the callbacks have had the next steps."""
        with self._changed:
            self._called += count
            self._changed.notify_all()

    def release(self) -> None:
        """Wait no more: the run ends after a step, which all nodes have to reach."""
        with self._changed:
            self._released = True
            self._changed.notify_all()

    def is_ahead(self, done: int | None) -> bool:
        """Whether a step has to wait.

        Args:
            done: how many steps of this run the node has done; None to count those that
                are reported, where nodes have steps of their own.
        """
        ahead = (self._reported if done is None else done) - self._called
        return ahead >= MAX_LEAD and not self._released

    def wait(self, done: int | None, has_failed: Callable[[], bool]) -> None:
        """Wait until the callbacks have had enough steps, or the run has failed."""
        with self._changed:
            while self.is_ahead(done) and not has_failed():
                self._changed.wait(CHECK)
