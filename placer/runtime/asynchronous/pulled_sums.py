"""A worker's side of an asynchronous table with a worker-side update.

Servers sum the gradients. The worker applies each received sum once, in order, when its next
step begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placer.channel.interface import Array, Piece
from placer.errors import RunError
from placer.runtime.asynchronous.communicator import Communicator, Versions
from placer.runtime.asynchronous.recorded_order import USE
from placer.runtime.exchange.worker_messages import WorkerMessage


@dataclass(frozen=True, slots=True)
class _Sum:
    """The gradient sums in the answers of all servers to one message."""

    number: int  # of the message
    versions: Versions
    horizon: int  # the sums include all workers' steps up to this one
    steps: int  # number of summed steps; servers may differ, this is the maximum
    newest: int  # newest summed step
    ranges: Sequence[Sequence[Array]]  # by server; empty without new gradients


class PulledSums(Communicator):
    """A worker's side of one table; the compute thread calls `take` and `take_rest`.

    `order` also records how many sums are applied before each step.
    """

    def __init__(self, *arguments: Any) -> None:
        self._arrived: deque[_Sum] = deque()
        self._taken = 0  # number of applied sums since the last drain
        self._applied = 0  # newest step applied for all workers
        super().__init__(*arguments)

    def take(self, step: int) -> list[WorkerMessage]:
        with self._changed:
            if self._order.replays:
                recorded, count = self._order.next(USE, self._pull.id)
                assert recorded == step, (recorded, step)
                while self._taken + len(self._arrived) < count:
                    self._wanted = 0
                    self._wait()
            else:
                while not self._may_use(self._horizon_of(step), self._known()):
                    self._wait()
                count = self._taken + len(self._arrived)
            sums = [self._arrived.popleft() for _ in range(count - self._taken)]
        self._order.add(USE, self._pull.id, step, count)
        return self._apply(sums)

    def take_rest(self) -> list[WorkerMessage]:
        with self._changed:
            sums = [*self._arrived]
            self._arrived.clear()
        rest = self._apply(sums)
        # Servers count from 0 after a drain.
        self._taken, self._used = 0, (0,) * len(self._servers)
        return rest

    def _known(self) -> int:
        return self._arrived[-1].horizon if self._arrived else self._applied

    def _apply(self, sums: Sequence[_Sum]) -> list[WorkerMessage]:
        for each in sums:
            self._used, self._applied = each.versions, each.horizon
        self._taken += len(sums)
        return [
            WorkerMessage(
                self._pull.id, self._channel.node, each.number, each.newest,
                each.steps, parts=(self._pieces(each),),
            )
            for each in sums
            if each.steps
        ]  # fmt: skip

    def _pieces(self, total: _Sum) -> Iterator[Piece]:
        """Yield the ranges of all servers, in the order of values and elements."""
        assert self._ranges is not None
        ranges: dict[int, list[tuple[int, Array]]] = {}
        for server, arrays in zip(self._servers, total.ranges, strict=True):
            owned = self._ranges.of_owner[server]
            if arrays and len(arrays) != len(owned):
                raise self._malformed(server)
            for at, (index, low, high) in enumerate(owned):
                dtype = self._pull.values[index].dtype
                array = arrays[at] if arrays else np.zeros(high - low, dtype)
                ranges.setdefault(index, []).append((low, array))
        for index, parts in sorted(ranges.items()):
            for low, array in sorted(parts, key=lambda part: part[0]):
                yield index + 1, low, array

    def _take(self, answers: Sequence[Sequence[Array]]) -> int:
        numbers = [[int(number) for number in answer[0]] for answer in answers]
        versions, horizons, _, steps, newest, *_ = zip(*numbers, strict=True)
        ranges = [answer[1:] for answer in answers]
        horizon: int = min(horizons)
        self._arrived.append(
            _Sum(self._number, versions, horizon, max(steps), max(newest), ranges)
        )
        return horizon

    def _end_drain(self) -> None:
        """Do nothing: the last sum has arrived and waits in the queue."""

    def _malformed(self, server: str) -> RunError:
        return RunError(
            f"the gradient sums of {server} do not fit this build",
            hint="give every node of a run the same build",
        )
