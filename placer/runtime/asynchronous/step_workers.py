"""Which workers a step waits for. `StepWorkers` waits for all workers.

With backup workers, a step waits only for the fastest workers: see `backup_workers.py`.
Programs with backup workers also use the calls `offer` and `sum_of_first`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placer.channel.interface import Array
from placer.tables.protocol import ProgramTable


class StepWorkers:
    """A node's part in steps that wait for all workers; it needs no extra messages.

    The classes for backup workers are subclasses.

    Attributes:
        has_drains: whether a drain has anything to wait for.
        is_taken: whether this node's last step used its gradients. None until the node
            joins the next step or drains.
    """

    has_drains = False
    is_taken: bool | None = True

    def joins(self, step: int) -> bool:
        """Wait until a step has begun or is over; return True if the node should compute it."""
        return True

    def begin(self, step: int, count: int) -> None:
        """Begin a step with a batch of `count` rows."""

    def end(self, step: int) -> None:
        """End a step, after the program's hook."""

    def drain(self, step: int) -> None:
        """End the last step before a drain."""

    def store(self, table: ProgramTable, values: Sequence[Array]) -> None:
        """Replace the values of a table, unless the step does not use this node's gradients."""
        table.load(values)

    def offer(self, edge: int, *values: Any) -> None:
        """Send the values of an edge to each worker when it begins this step.

        Args:
            edge: the number of the edge.
            values: one array per value of the edge, in its order, or NamedTuples of
                arrays.

        Example:
            node.offer(1, p)
        """
        raise AssertionError(edge)

    def sum_of_first(self, edge: int, kind: type[Any] | None = None) -> Any:
        """Wait for the gradients of the fastest workers in this step, and add them up.

        Gradients are added in the order of the nodes. The sums are scaled from the rows of
        these workers to all rows of the step.

        Args:
            edge: the number of the edge.
            kind: the NamedTuple class of the table.

        Returns:
            A tuple with one array per value of the edge, or an instance of `kind`.

        Example:
            g = node.sum_of_first(3, Dense)
        """
        raise AssertionError(edge)
