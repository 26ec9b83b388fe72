"""Which processes of a run a signal such as SIGSTOP has frozen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from placer.launcher.watched_node import WatchedNode

CHECK = 3.0
"""Seconds between two looks for frozen processes before the first step; a process that
both find frozen is named."""


@dataclass(slots=True)
class FrozenNodes:
    """The nodes whose processes are frozen.

    Attributes:
        names: those that the last look has found.
    """

    names: set[str] = field(default_factory=set)
    _named: set[str] = field(default_factory=set)
    _due: float = 0.0

    def look(self, running: Sequence[WatchedNode]) -> None:
        """Find out which of the running nodes are frozen."""
        self.names = {child.node for child in running if child.is_stopped()}

    def newly_named(self, running: Sequence[WatchedNode]) -> Iterator[str]:
        """Yield a text for each node that is frozen for some time, once.

        Before the first step others may wait for it for long, and do not know it yet.
        """
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
