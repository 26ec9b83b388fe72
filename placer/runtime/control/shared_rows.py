"""Shares the rows of a process between its nodes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock

from placer.channel.cause import Aborted, Cause
from placer.readers import PieceRows, Rows


class SharedRows:
    """The rows of a process, by phase.

    The first node that requests the rows of a phase opens the source; other nodes wait.

    Attributes:
        files: the paths of the files of each phase whose source is a set.
        rows_read: the number of rows read so far from the source that is being opened.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, ...]] = {}
        self.rows_read = 0
        self._lock = Lock()
        self._of_phase: dict[str, Future[Rows | PieceRows]] = {}

    def of_phase(
        self, phase: str, node: str, read: Callable[[], Rows | PieceRows]
    ) -> Rows | PieceRows:
        """Return the rows of a phase; all nodes receive the same object.

        Args:
            node: the node that requests the rows.
            read: opens the source.

        Raises:
            Exception: the error of `read`, on the node that called it.
            Aborted: on the other nodes, with the node that called `read` as the cause.
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

    def drop_failed(self) -> None:
        """Forget the phases whose source could not be opened, after a failed attempt."""
        with self._lock:
            self._of_phase = {
                phase: rows
                for phase, rows in self._of_phase.items()
                if rows.done() and rows.exception() is None
            }
