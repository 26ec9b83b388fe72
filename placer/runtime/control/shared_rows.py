"""The rows of a process: its nodes share them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock

from placer.channel.cause import Aborted, Cause
from placer.readers import PieceRows, Rows


class SharedRows:
    """The rows that the nodes of a process read, by phase. The node that asks for them first
    opens their source, and the others wait for it.

    Attributes:
        rows_read: the number of rows that the source which is being opened has read.
    """

    def __init__(self) -> None:
        self.rows_read = 0
        self._lock = Lock()
        self._of_phase: dict[str, Future[Rows | PieceRows]] = {}

    def of_phase(
        self, phase: str, node: str, read: Callable[[], Rows | PieceRows]
    ) -> Rows | PieceRows:
        """Return the rows of a phase, the same object for all nodes.

        Args:
            phase: the phase.
            node: the node that asks for them.
            read: opens the source.

        Raises:
            What `read` raises, on the node that called it. Aborted on the others, so that
            this node is the one that has failed.
        """
        with self._lock:
            is_first = phase not in self._of_phase
            rows = self._of_phase.setdefault(phase, Future())
        if is_first:
            try:
                rows.set_result(read())
            except BaseException as error:
                rows.set_exception(Aborted(Cause(node, "", str(error))))
                raise
        return rows.result()
