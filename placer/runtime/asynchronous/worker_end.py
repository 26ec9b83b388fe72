"""What a node can do with a worker's end of a table without lockstep, of any kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from placer.channel.interface import Array
from placer.runtime.exchange.worker_messages import WorkerMessage

if TYPE_CHECKING:
    from placer.runtime.asynchronous.asked_rows import AskedRows


class WorkerEnd(Protocol):
    """A worker's end of one table, or of tables that are exchanged together.

    Every kind has `resume`, `drain`, `horizon` and `close`. Of the other calls it has those
    of its exchange, and programs have no others: one of them would be a mistake of the
    compiler. The compute thread calls all of them.
    """

    def resume(self, steps: Mapping[str, int]) -> None:
        """Continue after the steps that workers have done; before the first other call."""

    def drain(self, step: int, *, ends: bool = False) -> None:
        """Send all that this worker has computed up to a step, and tell the others that it
        was the last one before they go on together. `ends` says that it is the last one of
        the run."""

    @property
    def horizon(self) -> int:
        """The newest step known up to which all steps of all workers are applied."""

    def close(self) -> None:
        """End the threads, if there are any, and wait for that."""
        return

    def pull(self, step: int) -> Sequence[Array]:
        """Return the newest parameters, once the step may begin."""
        raise AssertionError(self)

    def push(self, step: int, rows: tuple[int, int], arrays: Sequence[Array]) -> None:
        """Queue the gradients of a step; wait while too many are queued.

        `rows` are those of this worker in the step, and of the batch. Without rows of
        its own a worker has no gradients.
        """
        raise AssertionError(self)

    def merge(self, step: int) -> None:
        """Merge the answer to the last difference before a step, if it is there."""
        raise AssertionError(self)

    def push_delta(self, step: int) -> None:
        """Push a difference after a step, if that is due."""
        raise AssertionError(self)

    def take(self, step: int) -> list[WorkerMessage]:
        """Return what to apply before a step, once it may begin."""
        raise AssertionError(self)

    def take_rest(self) -> list[WorkerMessage]:
        """Return what to apply after a drain."""
        raise AssertionError(self)

    @property
    def staleness(self) -> Counter[int]:
        """How many gradients this worker has applied with each staleness."""
        return Counter()

    @property
    def asked_rows(self) -> AskedRows | None:
        """This end, if it is of rows by key."""
        return None
