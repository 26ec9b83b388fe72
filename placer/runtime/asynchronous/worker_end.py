"""The interface of a worker's side of an asynchronous table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from placer.channel.interface import Array
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.system.owned_threads import OwnedThreads

if TYPE_CHECKING:
    from placer.runtime.asynchronous.asked_rows import AskedRows


class WorkerEnd(Protocol):
    """A worker's side of one table, or of several tables that are exchanged together.

    Every kind has `resume`, `drain`, `horizon` and `close`. A kind implements only the
    other calls that its exchange uses; the compiler emits no others. The compute thread
    calls all methods.
    """

    def resume(self, steps: Mapping[str, int]) -> None:
        """Continue after the last finished step of each worker; call it first."""

    def drain(self, step: int, *, ends: bool = False) -> None:
        """Send everything that this worker has computed, and tell the other nodes.

        Args:
            step: the last step before the drain.
            ends: whether it is the last step of the run.
        """

    @property
    def horizon(self) -> int:
        """The newest step known to be applied for all workers."""

    def close(self) -> None:
        """End the threads, if any, and wait for their end."""
        return

    @property
    def threads(self) -> OwnedThreads | None:
        """The threads of this end; None without threads."""
        return None

    def pull(self, step: int) -> Sequence[Array]:
        """Wait until a step may begin; return the newest parameters."""
        raise AssertionError(self)

    def push(self, step: int, rows: tuple[int, int], arrays: Sequence[Array]) -> None:
        """Queue the gradients of a step. Wait while the queue is full.

        Args:
            step: the step.
            rows: the number of this worker's rows, and of all rows of the batch. A worker
                without rows has no gradients.
            arrays: the gradient of each block.
        """
        raise AssertionError(self)

    def merge(self, step: int) -> None:
        """Before a step, merge the answer to the last difference if it has arrived."""
        raise AssertionError(self)

    def push_delta(self, step: int) -> None:
        """Push the difference after a step, if the mode schedules it."""
        raise AssertionError(self)

    def take(self, step: int) -> list[WorkerMessage]:
        """Wait until a step may begin; return the messages to apply before it."""
        raise AssertionError(self)

    def take_rest(self) -> list[WorkerMessage]:
        """Return the messages to apply after a drain."""
        raise AssertionError(self)

    @property
    def staleness(self) -> Counter[int]:
        """The number of gradients that this worker has applied, for each staleness."""
        return Counter()

    @property
    def asked_rows(self) -> AskedRows | None:
        """This end, if it exchanges rows by key; None otherwise."""
        return None
