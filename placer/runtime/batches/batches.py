"""The global batches of a source; a node reads its own rows of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from placer.place.layouts.partition import RowRange, RowShard, part_range
from placer.readers import LateRows, Order, PieceRows, Rows
from placer.readers.streams.lane_rows import LaneRows
from placer.readers.windows import WindowReader
from placer.runtime.batches.passes import Passes, Position
from placer.runtime.batches.read_ahead import ReadAhead, WatchReading

Columns = Mapping[str, np.ndarray]
"""Arrays of rows, by input."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The global batches of a source.

    Attributes:
        order: the order of the rows.
        rows: the opened source; None on a node that reads nothing.
        last_step: the number of the last known step, from 1: that of the run, or that of a
            pass of a stream. Rows are not read ahead beyond it.
        watch: observes the threads that read ahead; None without an observer.
        before: the last step before the passes over these rows, and its epoch.
    """

    order: Order
    rows: Rows | PieceRows | LaneRows | None
    last_step: int = 0
    watch: WatchReading | None = None
    before: tuple[int, int] = (0, 0)
    _ahead: dict[tuple[RowShard, int], ReadAhead[list[Columns]]] = field(
        default_factory=dict, repr=False
    )

    @property
    def passes(self) -> Passes:
        """The passes of the run over these rows."""
        return Passes(self.order.steps_per_epoch, self.last_step, *self.before)

    def batch_size(self, index: int) -> int:
        """Return the number of rows of batch `index` (from 0) of an epoch."""
        return self.order.batch_size(index)

    @property
    def epoch_rows(self) -> int:
        """The number of rows of an epoch, on all nodes together."""
        return min(self.order.rows, self.order.steps_per_epoch * self.order.batch)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The possible numbers of rows of a batch; only the last batch of an epoch may be short."""
        last = self.order.steps_per_epoch - 1
        return tuple(dict.fromkeys((self.batch_size(0), self.batch_size(last))))

    @property
    def source_rows(self) -> int | None:
        """The number of rows of the source on this node; None if it reads nothing."""
        return self.rows.rows if self.rows is not None else None

    def after(self, step: int, epoch: int) -> Batches:
        """Return these batches for passes that begin after a step of an epoch."""
        return replace(self, before=(step, epoch))

    def until(self, last_step: int | None, epochs: int) -> Batches:
        """Return these batches for a run that ends with a step; by default, with that of a
        number of epochs."""
        if last_step is None:
            last_step = self.before[0] + epochs * self.order.steps_per_epoch
        return replace(self, last_step=last_step)

    def watched(self, watch: WatchReading | None) -> Batches:
        """Return these batches with an observer of the threads that read ahead."""
        return replace(self, watch=watch)

    def with_rows(self, rows: int | None) -> Batches:
        """Return these batches for a source with `rows` rows; unchanged if `rows` is None."""
        if rows is None:
            return self
        return replace(self, order=replace(self.order, rows=rows))

    def begin(self, done: int, shards: Iterable[RowShard], parts: int) -> None:
        """Start reading ahead after step `done` of a run.

        Args:
            done: the number of the last finished step, from 1; 0 before the first step.
            shards: the parts of a batch, or of each microbatch, that the node reads.
            parts: the number of microbatches.
        """
        if self._reads_ahead and done < self.last_step:
            first = self.passes.place_of(done + 1)
            for shard in dict.fromkeys(shards):
                self._read_ahead(shard, parts).begin(first)

    def take(
        self, position: Position, shard: RowShard, part: int | None, parts: int
    ) -> Columns:
        """Return a node's rows of a batch or microbatch, by input.

        Args:
            position: the epoch, and the step in the epoch.
            shard: the node's part of a batch, or of each microbatch.
            part: the microbatch; None for the whole batch.
            parts: the number of microbatches.

        Returns:
            Arrays [rows, *shape], as `Rows.take` returns them.

        Raises:
            DataError, RunError: if the source raises them.
        """
        if self._reads_ahead:
            ahead = self._read_ahead(shard, 1 if part is None else parts)
            return ahead.take(position)[part or 0]
        count = self.batch_size(position[1])
        return self._take(*position, own_ranges(shard, count, part, parts))

    def close(self) -> None:
        """End the threads that read ahead."""
        for each in self._ahead.values():
            each.close()

    @property
    def _reads_ahead(self) -> bool:
        """Whether rows are loaded while training. True for pieces of a file, and for a
        Python sequence with a known number of steps."""
        is_late = isinstance(self.rows, LateRows) and self.last_step > 0
        return is_late or isinstance(self.rows, PieceRows | LaneRows)

    def _read_ahead(self, shard: RowShard, parts: int) -> ReadAhead[list[Columns]]:
        """Return the reader of a shard's batches, split into microbatches."""
        key = shard, parts
        if key not in self._ahead:
            take = self._take
            if isinstance(self.rows, PieceRows):
                take = WindowReader(self.order, self.rows).take
            elif isinstance(self.rows, LaneRows):
                take = self.rows.reader(shard, parts).take
            read = _reading(self.order, take, shard, parts)
            self._ahead[key] = ReadAhead(read, self.passes.following, self.watch)
        return self._ahead[key]

    def _take(self, epoch: int, step: int, ranges: Sequence[RowRange]) -> Columns:
        """Return rows [low, high) of a batch from a source with numbered rows."""
        assert self.rows is not None
        assert not isinstance(self.rows, PieceRows | LaneRows)
        indices = self.order.indices(epoch, step)
        own = [indices[low:high] for low, high in ranges]
        return self.rows.take(np.concatenate(own) if own else np.empty(0, np.int64))


def own_ranges(
    shard: RowShard, count: int, part: int | None, parts: int
) -> Sequence[RowRange]:
    """Return a node's row ranges in a batch of `count` rows. If `part` is given, only
    the ranges in that microbatch of `parts`."""
    start, stop = (0, count) if part is None else part_range(count, part, parts)
    return [(start + low, start + high) for low, high in shard.ranges(stop - start)]


def _reading(
    order: Order,
    take: Callable[[int, int, Sequence[RowRange]], Columns],
    shard: RowShard,
    parts: int,
) -> Callable[[Position], list[Columns]]:
    """Return a function that reads a shard's rows of each microbatch of a step."""

    def read(position: Position) -> list[Columns]:
        count = order.batch_size(position[1])
        return [
            take(*position, own_ranges(shard, count, part, parts))
            for part in range(parts)
        ]

    return read
