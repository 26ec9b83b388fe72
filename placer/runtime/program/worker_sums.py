"""The sums that a server keeps for workers which update by themselves: for each worker, the
gradients of all workers since it has asked last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from placer.build.plan import Edge
from placer.channel.protocol import Array
from placer.memory.arena import Arena
from placer.runtime.program.range_exchange import RangeEdge
from placer.runtime.program.worker_messages import WorkerMessage, malformed
from placer.types import is_half_float


@dataclass(slots=True)
class Sum:
    """The sum for one worker: of so many `steps`, up to the step `newest`. Without steps
    there are no arrays."""

    steps: int = 0
    newest: int = 0
    arrays: list[Array] = field(default_factory=list)


class WorkerSums:
    """The sums of one server for one table; used by one thread.

    Gradients are added in the order in which they come, half floats in float32.

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
        self._sums = {worker: Sum() for worker in push.sources}

    def add(self, message: WorkerMessage) -> None:
        """Add the gradients of a worker to the sum for each worker, as they arrive.

        Raises RunError for gradients that do not fit the plan.
        """
        for each in self._sums.values():
            if not each.arrays:
                each.arrays = [
                    self._arena.allocate(_dtype_of_sums(dtype), (size,))
                    for dtype, size in zip(self._dtypes, self._sizes, strict=True)
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
            for each in self._sums.values():
                total = each.arrays[at][start:stop]
                if each.steps:
                    # No warning for an overflow: the loss shows it.
                    with np.errstate(over="ignore", invalid="ignore"):
                        np.add(total, part, out=total)
                else:
                    total[...] = part
        if ends != self._sizes:
            raise malformed(message)
        for each in self._sums.values():
            each.steps += message.steps
            each.newest = max(each.newest, message.step)

    def take(self, worker: str) -> Sum:
        """Return the sum for a worker, and begin the next one."""
        taken, self._sums[worker] = self._sums[worker], Sum()
        taken.arrays = _rounded(taken.arrays, self._dtypes)
        return taken


def _dtype_of_sums(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    return np.dtype(np.float32) if is_half_float(dtype) else dtype


def _rounded(
    arrays: Sequence[Array], dtypes: Sequence[np.dtype[np.generic]]
) -> list[Array]:
    with np.errstate(over="ignore", invalid="ignore"):
        return [a.astype(d, copy=False) for a, d in zip(arrays, dtypes, strict=False)]
