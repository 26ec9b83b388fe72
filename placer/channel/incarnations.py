"""The incarnations of a run's processes: which process of a node is the newest one.

An *incarnation* is the number of a process. The process that takes the place of another one has
the larger number. docs/about/channel.md describes the rules that use it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(eq=False)
class Incarnations:
    """The memory of one process over all its sessions. The sessions follow each other.

    Attributes:
        own: the incarnation of this process; by default the time in nanoseconds.
        has_been_in_attempt: whether a session of this process has joined all its peers.
    """

    own: int = field(default_factory=time.time_ns)
    has_been_in_attempt: bool = False
    _seen: dict[str, tuple[int, str]] = field(default_factory=dict)

    def see(self, node: str, incarnation: int, address: str) -> None:
        """Record the newest process of a node, and its address."""
        self._seen[node] = incarnation, address

    def retire(self, node: str, address: str) -> None:
        """Record that the processes of a node seen so far are replaced by one at `address`."""
        self._seen[node] = self.of(node) + 1, address

    def of(self, node: str) -> int:
        """Return the largest incarnation seen of a node; 0 if none was seen."""
        return self._seen[node][0] if node in self._seen else 0

    def address_of(self, node: str) -> str:
        """Return the address of the newest process of a node."""
        return self._seen[node][1]
