"""The part of a node in the steps of a run: here, each step waits for all workers.

With backup workers steps do not. `backup_workers.py` has the parts of a server and of a
worker in these; their programs also have the calls `offer` and `sum_of_first`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from placer.channel.interface import Array
from placer.tables.protocol import ProgramTable


class AllWorkers:
    """The part of a node in steps that wait for all workers: it does each step, and nothing
    else is to do. The parts with backup workers are its subclasses.

    Attributes:
        has_drains: whether a drain has something to wait for.
        is_taken: whether the last step of this node has taken its gradients; None if that
            is known only once it joins the next step, or has drained.
    """

    has_drains = False
    is_taken: bool | None = True

    def joins(self, step: int) -> bool:
        """Return whether this node does a step, or the step is over already. Waits until
        that is known."""
        return True

    def begin(self, step: int, count: int) -> None:
        """Begin a step, whose batch has `count` rows."""

    def end(self, step: int) -> None:
        """End a step, after the program's."""

    def drain(self, step: int) -> None:
        """End a step that is the last one for now."""

    def store(self, table: ProgramTable, values: Sequence[Array]) -> None:
        """Replace the values of a table, unless the step does not take this node's
        gradients."""
        table.load(values)

    def offer(self, edge: int, *values: Any) -> None:
        """Send the values of an edge to each worker that begins this step, when it does.

        Args:
            edge: the number of the edge.
            values: one array per value of the edge, in its order, or NamedTuples of
                them.

        Example:
            node.offer(1, p)
        """
        raise AssertionError(edge)

    def sum_of_first(self, edge: int, kind: type[Any] | None = None) -> Any:
        """Wait for the gradients of the workers that are first in this step, and add
        them up in the order of the nodes.

        The sums are multiplied by the rows of the step over the rows of these workers.

        Args:
            edge: the number of the edge.
            kind: the NamedTuple class of the table.

        Returns:
            A tuple with one array per value of the edge; or a value of the class.

        Example:
            g = node.sum_of_first(3, Dense)
        """
        raise AssertionError(edge)
