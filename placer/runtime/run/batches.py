"""The global batches of a source, of which a node reads its own rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from placer.readers import Order, Rows


@dataclass(frozen=True, slots=True)
class Batches:
    """The global batches of a source.

    Attributes:
        order: the order of the rows.
        rows: the opened source; None on a node that reads nothing.
    """

    order: Order
    rows: Rows | None

    def batch_size(self, index: int) -> int:
        """Return the number of rows of batch `index` (from 0) of an epoch."""
        return self.order.batch_size(index)

    @property
    def epoch_rows(self) -> int:
        """The number of rows of an epoch, on all nodes together."""
        return min(self.order.rows, self.order.steps_per_epoch * self.order.batch)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of rows that a batch may have: all but the last of an epoch are
        full."""
        last = self.order.steps_per_epoch - 1
        return tuple(dict.fromkeys((self.batch_size(0), self.batch_size(last))))

    @property
    def source_rows(self) -> int | None:
        """The number of rows of the source on this node; None if it reads nothing."""
        return self.rows.rows if self.rows is not None else None

    def with_rows(self, rows: int | None) -> Batches:
        """Return the batches of a source with this number of rows, if it is known."""
        if rows is None:
            return self
        return replace(self, order=replace(self.order, rows=rows))
