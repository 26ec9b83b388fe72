"""The gradient sums that a server keeps for workers with a worker-side update.

Each worker receives the sum of all workers' gradients since its last request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from placer.channel.interface import Array
from placer.plan.plan import Edge
from placer.runtime.exchange.range_exchange import RangeEdge
from placer.runtime.exchange.worker_messages import WorkerMessage, malformed
from placer.system.memory.arena import Arena
from placer.tables.half_sums import dtype_of_sums, round_to


@dataclass(frozen=True, slots=True)
class Sum:
    """The gradient sum for one worker. Nobody may write to the arrays."""

    steps: int  # number of summed steps
    newest: int  # newest summed step
    arrays: Sequence[Array]  # empty without steps


@dataclass(slots=True)
class _Group:
    """Workers whose last requests saw the same gradients, and the gradient sum since then.

    Arrays are not written to after they were taken.
    """

    workers: set[str]
    steps: int = 0
    newest: int = 0
    arrays: list[Array] = field(default_factory=list)
    is_taken: bool = False


class WorkerSums:
    """The gradient sums of one server for one table; used by one thread.

    Gradients are added in the order of arrival, half floats in float32. Workers whose last
    requests saw the same gradients share a sum, so a push is added once per such group.

    Args:
        push: the edge of the gradients; the server holds ranges of its values.
        server: the name of the server.
    """

    def __init__(self, push: Edge, server: str) -> None:
        known = RangeEdge(push)
        self._dtypes: list[np.dtype[np.generic]] = []
        self._sizes: list[int] = []
        for index, low, high in known.of_owner[server]:
            self._dtypes.append(np.dtype(push.values[index].dtype))
            self._sizes.append(high - low)
        self._arena = Arena()
        self._groups = [
            _Group({*push.sources})
        ]  # The last group has seen all gradients.

    @property
    def kept(self) -> int:
        """The number of sums with gradients."""
        return sum(group.steps > 0 for group in self._groups)

    def add(self, message: WorkerMessage) -> None:
        """Add a worker's gradients to all sums, as they arrive. Raises RunError for
        gradients that do not fit the plan."""
        targets = [
            self._allocate() if group.is_taken or not group.steps else group.arrays
            for group in self._groups
        ]
        ends = [0] * len(self._sizes)
        (pieces,) = message.parts
        for index, start, part in pieces:
            at, stop = index - 1, start + part.size
            if (
                not 0 <= at < len(ends)
                or start != ends[at]
                or stop > self._sizes[at]
                or part.dtype != self._dtypes[at]
            ):
                raise malformed(message)
            ends[at] = stop
            for group, arrays in zip(self._groups, targets, strict=True):
                total = arrays[at][start:stop]
                if group.steps:
                    # Do not warn about an overflow: the loss shows it.
                    with np.errstate(over="ignore", invalid="ignore"):
                        np.add(group.arrays[at][start:stop], part, out=total)
                else:
                    total[...] = part
        if ends != self._sizes:
            raise malformed(message)
        for group, arrays in zip(self._groups, targets, strict=True):
            group.arrays, group.is_taken = arrays, False
            group.steps += message.steps
            group.newest = max(group.newest, message.step)

    def take(self, worker: str) -> Sum:
        """Return the sum for a worker, and start its next sum."""
        (group,) = (each for each in self._groups if worker in each.workers)
        group.is_taken = True
        arrays = [
            round_to(array, dtype)
            for array, dtype in zip(group.arrays, self._dtypes, strict=False)
        ]
        taken = Sum(group.steps, group.newest, arrays)
        if group.steps:
            group.workers.remove(worker)
            if self._groups[-1].steps:
                self._groups.append(_Group(set()))
            self._groups[-1].workers.add(worker)
            self._groups = [each for each in self._groups if each.workers]
        return taken

    def _allocate(self) -> list[Array]:
        return [
            self._arena.allocate(dtype_of_sums(dtype), (size,))
            for dtype, size in zip(self._dtypes, self._sizes, strict=True)
        ]
