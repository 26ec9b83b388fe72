"""Deals the rows of a source that is read in pieces to lanes.

The order depends only on the settings, the numbers of rows of the pieces, and the
epoch. In each epoch, the pieces are shuffled, and the lanes divide the rows of this
sequence. Each lane has consecutive rows, so it reads its pieces in turn. A lane
provides the same part of each batch. It shuffles its rows within a window: it draws all
rows of a window before it starts the next one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placer.place.layouts.partition import RowRange, part_range
from placer.plan.settings.data.window import Window
from placer.readers.order import Order


@dataclass(frozen=True)
class Deal:
    """The assignment of the rows of pieces to lanes and batches.

    Attributes:
        order: the settings; its `shuffle` is a `Window`.
        counts: the number of rows of each piece, in the order of the source. Their sum
            is `order.rows`.
    """

    order: Order
    counts: tuple[int, ...]

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return self._settings.parts

    @property
    def window(self) -> int:
        """The number of rows of a window of one lane."""
        return self._settings.window // self.lanes

    @property
    def _settings(self) -> Window:
        assert isinstance(self.order.shuffle, Window)
        return self.order.shuffle

    def part_of_batch(self, lane: int, rows: int) -> RowRange:
        """Return the rows [low, high) of a batch of `rows` rows that a lane provides."""
        return part_range(rows, lane, self.lanes)

    def lanes_of(
        self, step: int, low: int, high: int
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield (lane, first, stop, row) for the rows [low, high) of a step's batch.

        In the order of the batch: the lane provides its rows [first, stop) of the
        epoch. The first of them is row `row` of the batch.
        """
        rows = self.order.batch_size(step)
        lane = low * self.lanes // rows  # or one of its neighbors
        while lane and self.part_of_batch(lane, rows)[0] > low:
            lane -= 1
        for each in range(lane, self.lanes):
            first, stop = self.part_of_batch(each, rows)
            a, b = max(first, low), min(stop, high)
            if a < b:
                given = step * self._rows_of_step(each)
                yield each, given + a - first, given + b - first, a
            if first >= high:
                return

    def lane_rows(self, lane: int) -> int:
        """Return the number of rows of a lane in an epoch, with a short last batch."""
        batches, tail = divmod(self.order.rows, self.order.batch)
        first, stop = self.part_of_batch(lane, tail)
        return batches * self._rows_of_step(lane) + stop - first

    def _rows_of_step(self, lane: int) -> int:
        first, stop = self.part_of_batch(lane, self.order.batch)
        return stop - first

    def window_at(self, lane: int, position: int) -> tuple[int, int, int]:
        """Return the window of a lane that contains a position: its number, low, high.

        Positions count the rows of a lane in an epoch, before they are shuffled. The
        window has the positions [low, high). The first window of a lane is partial: the
        later the lane, the larger it is. So the lanes do not all start a window in the
        same step.
        """
        size, rows = self.window, self.lane_rows(lane)
        first = max(1, size * (lane + 1) // self.lanes)
        index = 0 if position < first else 1 + (position - first) // size
        high = first + index * size
        return index, max(0, high - (size if index else first)), min(high, rows)

    def drawn(self, epoch: int, lane: int, index: int, rows: int) -> NDArray[np.int64]:
        """Return the order in which the rows of a window are drawn: int64[rows]."""
        # Counters that begin with zeros are reserved for the order of the pieces.
        counter = np.array([0, 0, lane + 1, index], np.uint64)
        bits = np.random.Philox(counter=counter, key=self._key(epoch))
        return np.random.Generator(bits).permutation(rows).astype(np.int64, copy=False)

    def spans(
        self, epoch: int, lane: int, low: int, high: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (piece, start, stop): the rows at the positions [low, high) of a lane.

        They are the rows [start, stop) of each piece.
        """
        pieces, bounds = self._sequence(epoch)
        first = self._lane_starts[lane]
        low, high = low + first, high + first
        at = int(np.searchsorted(bounds, low, "right")) - 1
        while low < high:
            start, stop = int(bounds[at]), int(bounds[at + 1])
            if stop > low:
                yield int(pieces[at]), low - start, min(stop, high) - start
                low = min(stop, high)
            at += 1

    @cached_property
    def _lane_starts(self) -> tuple[int, ...]:
        rows = [self.lane_rows(lane) for lane in range(self.lanes)]
        return tuple(np.cumsum([0, *rows[:-1]]).tolist())

    def _sequence(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shuffled pieces of an epoch, and the cumulative numbers of rows."""
        known = self._sequences
        if epoch not in known:
            bits = np.random.Philox(key=self._key(epoch))
            pieces = np.random.Generator(bits).permutation(len(self.counts))
            rows = np.asarray(self.counts, np.int64)[pieces]
            known.clear()
            known[epoch] = pieces, np.concatenate([[0], np.cumsum(rows)])
        return known[epoch]

    @cached_property
    def _sequences(self) -> dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]:
        return {}

    def _key(self, epoch: int) -> NDArray[np.uint64]:
        return np.array([self.order.seed % 2**64, epoch], np.uint64)
