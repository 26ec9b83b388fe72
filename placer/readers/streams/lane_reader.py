"""Batches of a `python:` stream: each lane gives the same part of every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from placer.place.layouts.partition import RowRange
from placer.plan.settings.data.lanes import LanePosition
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.sources import SourceError
from placer.readers.column import dtype_of
from placer.readers.streams.lane import Arrived, Lane
from placer.system.memory import aligned
from placer.system.owned_threads import END_LIMIT

if TYPE_CHECKING:
    from placer.readers.streams.lane_source import LaneSource


@dataclass(frozen=True, slots=True)
class _Taken:
    """The state of a lane after some batches: its position, and its digests."""

    position: LanePosition
    digests: Mapping[str, int]


class LaneReader:
    """Reads rows of batches from the lanes that provide them.

    One thread calls `open` and then `take`; other threads may call the other methods
    meanwhile. All batches have the same number of rows, and all passes the same number of
    batches.
    """

    def __init__(
        self,
        source: LaneSource,
        data: RowSource,
        begin: tuple[int, int] = (1, 0),
        positions: Mapping[int, LanePosition] = MappingProxyType({}),
        locate: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Use the function of a stream.

        Args:
            source: the function.
            data: the settings of the stream.
            begin: the epoch and the step of the first batch.
            positions: the positions of all lanes before this batch; by default, each lane
                begins at its start.
            locate: attaches the position in the spec to errors of `take`.

        Raises:
            SourceError: if the positions are those of another number of lanes.
        """
        if positions and {*positions} != {*range(source.lanes)}:
            raise SourceError(
                ("stream", "lanes"),
                f"the stream has {source.lanes} lanes, but had {len(positions)} in the"
                " checkpoint",
                "the number of lanes of a stream is fixed: write the earlier one",
            )
        assert data.stream is not None
        assert data.stream.rows is not None
        self._source = source
        self._steps = data.stream.rows // data.batch
        self._part = data.batch // source.lanes
        self._begin, self._locate = begin, locate
        self._start = positions
        self._lanes: dict[int, tuple[Lane, int]] = {}  # with its number of batches
        self._opened_at: dict[Lane, int] = {}  # the number of batches before its start
        self._taken: dict[int, dict[int, _Taken]] = {}  # by lane and number of batches
        self._changing = Lock()  # guards `_taken`
        self._is_closed = False

    def take(
        self, epoch: int, step: int, ranges: Sequence[RowRange]
    ) -> dict[str, np.ndarray]:
        """Return rows of the batch of a step by input, as `Rows.take` does.

        Batches may be skipped. A batch can be taken again until it counts as trained: the
        lane is then read again from a mark.

        Args:
            epoch: the epoch, from 1.
            step: the step in the epoch, from 0.
            ranges: rows [low, high) of the global batch; they are those of whole lanes.

        Raises:
            DataError: if a block does not fit the inputs, if a lane has ended before, or if the
                rows after a mark are not those that were trained.
            RunError: if the function raises.
        """
        number, part, lanes = (
            self._count(epoch, step),
            self._part,
            self._lanes_of(ranges),
        )
        request = self._source.request
        out = {
            c.name: aligned.empty(
                (len(lanes) * part, *c.shape), dtype_of(c, request.source.text)
            )
            for c in request.columns
        }
        with self._locate():
            for index, lane in enumerate(lanes):
                rows = slice(index * part, (index + 1) * part)
                own = {name: array[rows] for name, array in out.items()}
                self._take(lane, number, own)
        return out

    def open(self, ranges: Sequence[RowRange]) -> None:
        """Begin to read the lanes of ranges of batches, before the first `take`."""
        for lane in self._lanes_of(ranges):
            self._open(lane, 0)

    def arrived(self) -> dict[int, Arrived]:
        """Return the rows of each lane that have arrived, as parts since the first batch."""
        found = {}
        for number, (lane, _) in list(self._lanes.items()):
            parts, has_ended = lane.arrived()
            found[number] = Arrived(self._opened_at[lane] + parts, has_ended)
        return found

    def wait(self, batches: int, seconds: float) -> None:
        """Wait until the rows of all batches up to a number have arrived or lanes have ended, for
        at most `seconds`. Raises an error as `take`."""
        end = monotonic() + seconds
        for lane, _ in list(self._lanes.values()):
            lane.wait(batches - self._opened_at[lane], max(0.0, end - monotonic()))

    def trained(self, epoch: int, step: int) -> None:
        """Forget the positions before the end of a step, which has been trained.

        Call it after each step: until then, all positions and their marks are kept.
        """
        count = self._count(epoch, step) + 1
        with self._changing:
            for of_lane in self._taken.values():
                for earlier in [each for each in of_lane if each < count]:
                    del of_lane[earlier]

    def positions(self, epoch: int, step: int) -> dict[int, LanePosition]:
        """Return the position after a step of each lane that this reader reads.

        All rows of the step have been taken, and no later step counts as trained.
        """
        return {n: taken.position for n, taken in self._after(epoch, step).items()}

    def digests(self, epoch: int) -> dict[int, dict[str, int]]:
        """Return the digests of each lane at the end of an epoch, by input.

        They cover all rows since the first batch. They are empty without
        `ReadOptions.with_digests`.
        """
        after = self._after(epoch, self._steps - 1)
        return {lane: dict(taken.digests) for lane, taken in after.items()}

    def close(self) -> None:
        """End the threads of the lanes. A thread inside the function ends later."""
        self._is_closed = True
        lanes = [lane for lane, _ in list(self._lanes.values())]  # `take` may open more
        for lane in lanes:
            lane.stop()
        end = monotonic() + END_LIMIT
        for lane in lanes:
            lane.join(max(0.0, end - monotonic()))

    def _lanes_of(self, ranges: Sequence[RowRange]) -> list[int]:
        part = self._part
        assert all(row % part == 0 for each in ranges for row in each), (ranges, part)
        return [n for low, high in ranges for n in range(low // part, high // part)]

    def _after(self, epoch: int, step: int) -> dict[int, _Taken]:
        count = self._count(epoch, step) + 1
        with self._changing:
            return {lane: of_lane[count] for lane, of_lane in self._taken.items()}

    def _count(self, epoch: int, step: int) -> int:
        """Return the number of batches before a step, from the first batch on."""
        first_epoch, first_step = self._begin
        return (epoch - first_epoch) * self._steps + step - first_step

    def _take(self, lane: int, number: int, out: Mapping[str, np.ndarray]) -> None:
        if lane not in self._lanes or self._lanes[lane][1] > number:
            self._open(lane, number)
        opened, count = self._lanes[lane]
        while count <= number:
            opened.take(out)  # a later batch replaces the rows of a skipped one
            count += 1
            self._lanes[lane] = opened, count
            with self._changing:
                taken = _Taken(opened.position, dict(opened.digests))
                self._taken[lane][count] = taken

    def _open(self, lane: int, number: int) -> None:
        """Open a lane at the last known position before a batch."""
        if lane in self._lanes:
            before = self._lanes[lane][0]
            before.stop()
            before.join(END_LIMIT)
        start = self._start.get(lane, LanePosition())
        with self._changing:
            known = self._taken.setdefault(lane, {0: _Taken(start, {})})
            counts = [each for each in known if each <= number]
            assert counts, (lane, number, "rows of a trained step are not read again")
            count = max(counts)
            taken = known[count]
        opened = Lane(self._source, lane, self._part, taken.position, taken.digests)
        self._opened_at[opened] = count
        self._lanes[lane] = opened, count
        if self._is_closed:
            opened.stop()
