"""The sums that a server keeps for workers which update by themselves: for each worker, the
gradients of all workers since it has asked last."""

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
    """The sum for one worker: of so many `steps`, up to the step `newest`. Without steps
    there are no arrays. Nobody may write to the arrays."""

    steps: int
    newest: int
    arrays: Sequence[Array]


@dataclass(slots=True)
class _Group:
    """The workers that have asked last at the same point, and the sum since then. Arrays that
    were taken are not written to any more."""

    workers: set[str]
    steps: int = 0
    newest: int = 0
    arrays: list[Array] = field(default_factory=list)
    is_taken: bool = False


class WorkerSums:
    """The sums of one server for one table; used by one thread.

    Gradients are added in the order in which they come, half floats in float32. There is one
    sum for all workers that have asked last at the same point, so a push is added once for
    each of these points.

    Args:
        push: the edge of the gradients, whose values the server has ranges of.
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
        self._groups = [_Group({*push.sources})]  # the last one is of the newest point

    @property
    def kept(self) -> int:
        """How many sums there are now."""
        return sum(group.steps > 0 for group in self._groups)

    def add(self, message: WorkerMessage) -> None:
        """Add the gradients of a worker to the sum for each worker, as they arrive.

        Raises RunError for gradients that do not fit the plan.
        """
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
                    # No warning for an overflow: the loss shows it.
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
        """Return the sum for a worker, and begin the next one."""
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
