"""A worker's own copy of parameters in the mode `geo`, and its change since the last exchange.

The worker's optimizer updates the values. `old` holds the values that the servers know of this
worker. The difference old - values is sent, and a server's optimizer subtracts it like a
gradient. `old` then moves by the rounded difference, so the rounding error is part of the next
difference (PaddlePaddle, GEO-SGD).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.system.memory import aligned
from placer.tables.block_table import BlockTable

Array = npt.NDArray[Any]
TILE = 1 << 15
"""Elements per tile; a tile stays in the cache between the operations on it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Elements `start` to `stop` of a block of a table, flattened in C order."""

    block: int
    start: int
    stop: int


class LocalValues:
    """A worker's own values of a table, and the old values.

    Used only by the compute thread, between steps. Computes in the table's compute dtype.

    Args:
        table: the table.

    Attributes:
        old: the values that the servers know, one flat array per block of the table.
    """

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self.old = [np.array(value).reshape(-1) for value in table.values()]

    def load_old(self, arrays: Sequence[Array]) -> None:
        """Replace the old values, one array per block."""
        for old, array in zip(self.old, arrays, strict=True):
            old[...] = array.reshape(-1)

    def take_difference(
        self, parts: Sequence[Part], dtype: npt.DTypeLike, divisor: int
    ) -> list[Array]:
        """Return old - values, divided, for each part, and move the old values by it.

        Args:
            parts: the parts.
            dtype: the dtype of the results; the differences are rounded to it.
            divisor: divides the differences before rounding.
        """
        values = self.table.values()
        compute = self.table.compute_dtype
        differences = []
        for part in parts:
            value = np.asarray(values[part.block]).reshape(-1)[part.start : part.stop]
            old = self.old[part.block][part.start : part.stop]
            sent = aligned.empty((value.size,), dtype)
            for at in _tiles(value.size):
                before = old[at].astype(compute, copy=False)
                difference = np.subtract(before, value[at], dtype=compute)
                if divisor != 1:
                    difference /= divisor
                sent[at] = difference
                old[at] = np.subtract(before, sent[at], dtype=compute)
            differences.append(sent)
        return differences

    def merge(self, parts: Sequence[Part], news: Sequence[Array]) -> None:
        """Add the servers' changes, new - old, to the values of each part. `news` then
        become the old values."""
        compute = self.table.compute_dtype
        with self.table.editing() as values:
            for part, new in zip(parts, news, strict=True):
                value = values[part.block].reshape(-1)[part.start : part.stop]
                old = self.old[part.block][part.start : part.stop]
                for at in _tiles(value.size):
                    change = np.subtract(new[at], old[at], dtype=compute)
                    value[at] = np.add(value[at], change, dtype=compute)
                    old[at] = new[at]

    def replace(self, parts: Sequence[Part], news: Sequence[Array]) -> None:
        """Replace the values of each part by the servers' values."""
        with self.table.editing() as values:
            for part, new in zip(parts, news, strict=True):
                value = values[part.block].reshape(-1)[part.start : part.stop]
                value[...] = new
                self.old[part.block][part.start : part.stop] = new


def _tiles(size: int) -> Iterator[slice]:
    return (slice(low, min(low + TILE, size)) for low in range(0, size, TILE))
