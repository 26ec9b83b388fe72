"""Which nodes of a run are absent after a failure, and which are given up (`--elastic`)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from placer.errors import RunError
from placer.launcher.cause import Failure
from placer.launcher.watched_node import WatchedNode
from placer.place.node_kinds import NodeId
from placer.report.numbers import plural
from placer.runtime.control.events import BEFORE_FIRST_STEP, CONNECTING, State

if TYPE_CHECKING:
    from placer.launcher.restarts import Restarts

GIVE_UP_BEFORE: Final = 0.5
"""Seconds before `--join-timeout` at which a node is given up. The other nodes fail at that
time, because they have waited for it."""
_JOINING: Final = BEFORE_FIRST_STEP[BEFORE_FIRST_STEP.index(CONNECTING) + 1 :]
"""The states that only a node of the present attempt reports."""


class NodesLost(RunError):  # noqa: N818 - names the state of the run
    """Some nodes do not come back, and the run may go on with fewer.

    Attributes:
        nodes: why each process is given up, by name.
        restarts: the restarts of the run so far.
    """

    def __init__(self, text: str, nodes: Mapping[str, str], restarts: Restarts) -> None:
        super().__init__(text)
        self.nodes, self.restarts = nodes, restarts


@dataclass(slots=True)
class Absent:
    """The processes that have failed and not joined again.

    Attributes:
        wait: the seconds after which a process is given up; None if the run cannot go on with
            fewer nodes.
        lost: why each process is given up, by name.
    """

    wait: float | None = None
    lost: dict[str, str] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _waiting: set[str] = field(default_factory=set)
    """The absent processes that run again, and wait for others."""

    def since(self, node: str) -> float | None:
        """Return the time since which the process of a node is absent; None if it is not."""
        return self._since.get(node)

    def add(self, node: str) -> None:
        """Note that the process of a node has failed."""
        process = NodeId(node).process
        self._since.setdefault(process, time.monotonic())
        self._waiting.discard(process)

    def note(self, event: State) -> None:
        """Note the state of a node, which may have joined."""
        process = NodeId(event.node).process
        if event.state in _JOINING:
            self._since.pop(process, None)
        if event.state == CONNECTING and process in self._since:
            self._waiting.add(process)

    def clear(self) -> None:
        """Note that all nodes train again."""
        self.lost.clear()
        self._since.clear()
        self._waiting.clear()

    def give_up(self, node: str, ends: int) -> None:
        """Give up a process that has ended so often before it joined."""
        if self.wait is not None:
            self.lost[node] = f"has failed {plural(ends, 'time')} before it joined"

    def give_up_late(self, node: str) -> str:
        """Give up a process that has not come back; return why."""
        why = f"has not come back within {self.wait or 0.0:g} s"
        if self.wait is not None:
            self.lost[node] = why
        return why

    def overdue(self, now: float) -> Iterator[Failure]:
        """Give up the processes that have not come back, and yield a failure for each. Those
        that run and wait for others are given up only if there are no others."""
        if self.wait is None:
            return
        limit = self.wait - min(GIVE_UP_BEFORE, self.wait / 2)
        late = {node for node, since in self._since.items() if now - since > limit}
        for node in sorted((late - self._waiting or late) - self.lost.keys()):
            yield Failure(node, f"{node} {self.give_up_late(node)}", first_hand=True)

    def lost_of(self, children: Sequence[WatchedNode]) -> dict[str, str]:
        """Return why each process is given up, in the order of `children`. The absent
        processes of the same machine are given up as well."""
        hosts = {child.host for child in children if child.node in self.lost} - {""}
        first = next(iter(self.lost.values()))
        return {
            child.node: self.lost.get(child.node, first)
            for child in children
            if child.node in self.lost
            or (child.host in hosts and child.node in self._since)
        }
