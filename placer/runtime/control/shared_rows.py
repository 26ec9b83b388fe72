"""Shares the rows of a process between its nodes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Any, TypeVar

from placer.channel.cause import Aborted, Cause
from placer.plan.settings.data.stream_pass import StreamPass
from placer.readers import PieceRows, Rows

T = TypeVar("T")


class SharedRows:
    """The rows of a process, by phase.

    The first node that requests the rows of a phase, or of a pass of a stream, opens the
    source; other nodes wait.

    Attributes:
        files: the paths of the files of each phase whose source is a set.
        rows_read: the number of rows read so far from the source that is being opened.
    """

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, ...]] = {}
        self.rows_read = 0
        self._lock = Lock()
        self._of_phase: dict[str, Future[Any]] = {}
        self._of_pass: dict[int, tuple[StreamPass, Future[Rows | PieceRows]]] = {}

    def of_phase(self, phase: str, node: str, read: Callable[[], T]) -> T:
        """Return the rows of a phase; all nodes receive the same object.

        Args:
            node: the node that requests the rows.
            read: opens the source, or loads the function of a stream.

        Raises:
            Exception: the error of `read`, on the node that called it.
            Aborted: on the other nodes, with the node that called `read` as the cause.
        """
        with self._lock:
            is_first = phase not in self._of_phase
            rows = self._of_phase.setdefault(phase, Future())
        result: T = _result(rows, node, read if is_first else None)
        return result

    def of_pass(
        self, stream_pass: StreamPass, node: str, read: Callable[[], Rows | PieceRows]
    ) -> Rows | PieceRows:
        """Return the rows of a pass; all nodes receive the same object. Raises as `of_phase`."""
        number = stream_pass.number
        with self._lock:
            stored = self._of_pass.get(number)
            is_first = stored is None or stored[0] != stream_pass
            if stored is None or is_first:
                stored = self._of_pass[number] = stream_pass, Future()
        return _result(stored[1], node, read if is_first else None)

    def forget_passes(self, number: int) -> None:
        """Free the rows of the passes before a pass, which no node reads any more."""
        with self._lock:
            for earlier in [each for each in self._of_pass if each < number]:
                del self._of_pass[earlier]

    def drop_failed(self) -> None:
        """Forget the phases and passes whose source could not be opened, after a failed
        attempt."""
        with self._lock:
            self._of_phase = {
                phase: rows
                for phase, rows in self._of_phase.items()
                if rows.done() and rows.exception() is None
            }
            self._of_pass = {
                number: (stream_pass, rows)
                for number, (stream_pass, rows) in self._of_pass.items()
                if rows.done() and rows.exception() is None
            }


def _result(rows: Future[T], node: str, read: Callable[[], T] | None) -> T:
    """Return the rows of a future; the node that has `read` sets them."""
    if read is not None:
        try:
            rows.set_result(read())
        except BaseException as error:
            rows.set_exception(Aborted(Cause(node, "", str(error))))
            raise
    return rows.result()
