"""The rows of the batches of a source that is read by pieces."""

from __future__ import annotations

import numpy as np

from placer.readers.deal import Deal


def dealt_rows(deal: Deal, epoch: int, step: int) -> np.ndarray:
    """Return the numbers of the rows of a global batch in the source, as `Order.indices`
    does for a source in memory: int64[rows of the batch]."""
    batch = np.empty(deal.order.batch_size(step), np.int64)
    starts = np.cumsum((0, *deal.counts))
    for lane, first, stop, row in deal.lanes_of(step, 0, len(batch)):
        for position in range(first, stop):
            index, low, high = deal.window_at(lane, position)
            order = deal.drawn(epoch, lane, index, high - low)
            at = low + int(order[position - low])
            ((piece, start, _),) = deal.spans(epoch, lane, at, at + 1)
            batch[row + position - first] = starts[piece] + start
    return batch
