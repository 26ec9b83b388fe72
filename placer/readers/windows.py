"""Batches of a source that is read in pieces: each lane holds a window of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from placer.errors import DataError
from placer.place.layouts.partition import RowRange
from placer.readers.deal import Deal
from placer.readers.order import Order
from placer.readers.pieces import Batch, PieceRows
from placer.system.memory import aligned

_MAX_ROWS = 16384
_MIN_ROWS = 4096


def rows_at_a_time(window: int) -> int:
    """Return the number of rows of a piece to read at a time, for a window of a lane.

    No more than this number of encoded rows wait for the next window.
    """
    return min(_MAX_ROWS, max(_MIN_ROWS, window // 4))


class WindowReader:
    """Reads rows of batches from the lanes that provide them. For one thread at a time."""

    def __init__(self, order: Order, source: PieceRows) -> None:
        """Use an order whose `shuffle` is a `Window`, and an opened source."""
        self._deal, self._source = Deal(order, source.counts), source
        self._epoch = 0
        self._lanes: dict[int, _Lane] = {}

    def take(
        self, epoch: int, step: int, ranges: Sequence[RowRange]
    ) -> dict[str, np.ndarray]:
        """Return rows of the batch of a step by input, as `Rows.take` does.

        Consecutive steps read each piece of a lane once. For another step, whole pieces
        are skipped.

        Args:
            epoch: the epoch, from 1.
            step: the step in the epoch, from 0.
            ranges: rows [low, high) of the global batch.

        Raises:
            DataError: if the source cannot be read, or a value does not fit its input.
        """
        if epoch != self._epoch:
            self._lanes.clear()
            self._epoch = epoch
        rows = sum(high - low for low, high in ranges)
        out = {
            name: aligned.empty((rows, *column.shape[1:]), column.dtype)
            for name, column in self._source.columns.empty(0).items()
        }
        done = 0
        for low, high in ranges:
            for number, first, stop, row in self._deal.lanes_of(step, low, high):
                if number not in self._lanes:
                    self._lanes[number] = _Lane(self._deal, self._source, epoch, number)
                start = done + row - low
                end = start + stop - first
                part = {name: column[start:end] for name, column in out.items()}
                self._lanes[number].take(first, stop, part)
            done += high - low
        return out


class _Lane:
    """The rows of a lane in an epoch; the rows of one window are in memory."""

    def __init__(self, deal: Deal, source: PieceRows, epoch: int, lane: int) -> None:
        self._deal, self._source, self._epoch, self._lane = deal, source, epoch, lane
        self._low = self._high = -1  # the positions of the rows in memory
        self._values: Mapping[str, np.ndarray] = {}
        self._drawn: NDArray[np.int64] = np.empty(0, np.int64)
        self._position = -1  # the position of the next row of `_batches`
        self._batches: Iterator[Batch] = iter(())
        self._rest: Batch | None = (
            None  # rows of the last batch that belong to the next window
        )

    def take(self, first: int, stop: int, out: Mapping[str, np.ndarray]) -> None:
        """Write the rows [first, stop) of the lane to arrays."""
        done = 0
        while first < stop:
            index, low, high = self._deal.window_at(self._lane, first)
            if (low, high) != (self._low, self._high):
                self._load(index, low, high)
            end = min(stop, high)
            numbers = self._drawn[first - low : end - low]
            for name, values in self._values.items():
                part = out[name][done : done + len(numbers)]
                # The numbers are valid; with 'clip' NumPy writes into `out` directly.
                np.take(values, numbers, axis=0, out=part, mode="clip")
            done += len(numbers)
            first = end
            if first == high:
                self._values = {}  # free the memory before the next window is read
                self._low = self._high = -1
                if high == self._deal.lane_rows(self._lane):
                    self._batches, self._rest = iter(()), None  # closes the last piece

    def _load(self, index: int, low: int, high: int) -> None:
        self._values = {}
        if self._position != low:
            self._batches, self._rest = self._read(low), None
        columns, rows, done = self._source.columns, high - low, 0
        values = columns.empty(rows)
        while done < rows:
            batch = self._rest if self._rest is not None else next(self._batches)
            count = min(len(batch), rows - done)
            part = {name: v[done : done + count] for name, v in values.items()}
            batch.slice(0, count).convert(part)
            rest = batch.slice(count, len(batch))
            self._rest = rest if len(rest) else None
            done += count
        self._low, self._high, self._position = low, high, high
        self._values = values
        self._drawn = self._deal.drawn(self._epoch, self._lane, index, rows)

    def _read(self, low: int) -> Iterator[Batch]:
        """Yield the rows of the lane from a position, in the order of its pieces."""
        rows, reader = self._deal.lane_rows(self._lane), self._source.reader
        at_a_time = rows_at_a_time(self._deal.window)
        spans = self._deal.spans(self._epoch, self._lane, low, rows)
        for piece, start, stop in spans:
            row = 0
            for batch in reader.read(piece, at_a_time):
                first, end = max(start - row, 0), min(stop - row, len(batch))
                if first < end:
                    yield batch.slice(first, end)
                row += len(batch)
                if row >= stop:
                    break
            if row < stop:
                source = self._source.columns.request.source.text
                raise DataError(
                    f"{source} has a piece of {row} rows, but it had"
                    f" {self._source.counts[piece]}",
                    hint="a window reads the file during the run",
                )
