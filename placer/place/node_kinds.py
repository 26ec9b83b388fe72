"""Ids of nodes, and the kinds of nodes and devices with a special meaning."""

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
    """The id of a node: its kind, its number, and its thread.

    An id is the text `worker:0`, as in plans, messages and errors, so ids from files
    can be compared with it. If threads of a process are nodes, the id ends with the
    number of the thread: `worker:0.1`. The process is `worker:0`.

    Example:
        >>> node = NodeId.of("worker", 3)
        >>> node, node.kind, node.number
        ('worker:3', 'worker', 3)
        >>> node = NodeId.of("worker", 3, 1)
        >>> node, node.number, node.thread, node.process
        ('worker:3.1', 3, 1, 'worker:3')
    """

    __slots__ = ()

    @classmethod
    def of(cls, kind: str, number: int, thread: int | None = None) -> NodeId:
        """Return the id of a node, or of one of its threads."""
        return cls(
            f"{kind}:{number}" if thread is None else f"{kind}:{number}.{thread}"
        )

    @property
    def kind(self) -> str:
        """The kind of the node: `worker`, `ps` or `heter`."""
        return self.partition(":")[0]

    @property
    def number(self) -> int:
        """The number of the node's process, among processes of its kind."""
        return int(self.partition(":")[2].partition(".")[0])

    @property
    def thread(self) -> int | None:
        """The number of the node's thread; None if the node is a whole process."""
        thread = self.partition(".")[2]
        return int(thread) if thread else None

    @property
    def process(self) -> str:
        """The name of the process that runs the node: `worker:0` for `worker:0.1`."""
        return str(self).partition(".")[0]

    @property
    def stem(self) -> str:
        """The node's name in paths, such as `worker-0` or `worker-0.1`."""
        return self.replace(":", "-")

    @classmethod
    def of_stem(cls, stem: str) -> NodeId:
        """Return the id of the node with this name in paths."""
        kind, _, number = stem.rpartition("-")
        return cls(f"{kind}:{number}")
