"""Finds the processes of a run that a signal such as SIGSTOP has frozen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from placer.launcher.watched_node import WatchedNode

CHECK = 3.0
"""Seconds between two checks for frozen processes before the first step. A process is
reported if two checks in a row find it frozen."""


@dataclass(slots=True)
class FrozenNodes:
    """The nodes whose processes are frozen.

    Attributes:
        names: the nodes that the last check found.
    """

    names: set[str] = field(default_factory=set)
    _named: set[str] = field(default_factory=set)
    _due: float = 0.0

    def look(self, running: Sequence[WatchedNode]) -> None:
        """Find the frozen nodes among the running nodes."""
        self.names = {child.node for child in running if child.is_stopped()}

    def newly_named(self, running: Sequence[WatchedNode]) -> Iterator[str]:
        """Yield one message for each node that has been frozen for some time. Before
        the first step, other nodes may wait for it for a long time without noticing."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + CHECK
        before = self.names
        self.look(running)
        for node in sorted(self.names & before - self._named):
            self._named.add(node)
            yield describe(node)


def describe(node: str) -> str:
    """Return the message about a frozen node."""
    return f"{node} is frozen: a signal has stopped its process"
