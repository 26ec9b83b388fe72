"""The ids of nodes, and the kinds of nodes and devices that have a meaning of their
own."""

from __future__ import annotations

CPU = "cpu"
"""The device kind that every node has: the processor of its machine."""
SERVER = "ps"
"""The node kind of parameter servers."""
WORKER = "worker"
"""The node kind of workers, which read rows and compute."""
HETER = "heter"
"""The node kind of heter workers, which compute for workers and read no rows."""


class NodeId(str):
    """The id of a node: its kind and its number.

    It is the text `worker:0`, as in plans, messages and errors, so it can be a key
    beside ids that were read from a file.

    Example:
        >>> node = NodeId.of("worker", 3)
        >>> node, node.kind, node.number
        ('worker:3', 'worker', 3)
    """

    __slots__ = ()

    @classmethod
    def of(cls, kind: str, number: int) -> NodeId:
        """Return the id of a node of a kind."""
        return cls(f"{kind}:{number}")

    @property
    def kind(self) -> str:
        """The name of the node's kind: `worker`, `ps` or `heter`."""
        return self.partition(":")[0]

    @property
    def number(self) -> int:
        """The number of the node among those of its kind."""
        return int(self.partition(":")[2])
