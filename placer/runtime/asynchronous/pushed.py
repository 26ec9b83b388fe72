"""Joins the chunks of a worker's gradients into whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from placer.channel.interface import Array
from placer.plan.plan import EdgeValue
from placer.runtime.exchange.worker_messages import WorkerMessage, malformed
from placer.system.memory import aligned
from placer.tables.half_sums import mean_of


def join_pieces(
    message: WorkerMessage, values: Sequence[EdgeValue], dtype: np.dtype[Any]
) -> list[Array]:
    """Return the gradient of each block, joined from the arriving chunks.

    If the push holds the differences of several workers, return their mean.

    Args:
        message: the push.
        values: the values of its edge; their shapes do not depend on the batch.
        dtype: the dtype of the table.

    Raises:
        RunError: for gradients that do not fit the values.
    """
    arrays = []
    for value in values:
        sizes = tuple(size for size in value.shape if isinstance(size, int))
        assert len(sizes) == len(value.shape), value.result
        arrays.append(aligned.empty(sizes, dtype))
    flat = [array.reshape(-1) for array in arrays]
    filled = [0] * len(flat)
    for index, start, parts in message.chunks(values):
        target = flat[index]
        end = start + parts[0].size
        if start != filled[index] or end > target.size:
            raise malformed(message)
        target[start:end] = _mean(parts, dtype)
        filled[index] = end
    if filled != [target.size for target in flat]:
        raise malformed(message)
    return arrays


def _mean(parts: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """Return the mean of arrays, which are added in their order."""
    if len(parts) == 1:
        return parts[0].reshape(-1)
    return mean_of([part.reshape(-1) for part in parts], len(parts), dtype)
