"""A worker's own values of parameters that servers store, and how far they have moved.

Beside the values, which are those of a table that the worker's optimizer updates, there
are the `old` ones: what the servers know of this worker. The difference old - values is
what an optimizer of a server subtracts. After it was sent, `old` has moved by what was
sent, after rounding, and so what rounding left goes with the next difference
(PaddlePaddle, GEO-SGD).
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
"""The number of elements that are computed at a time, so that they stay in the cache."""


@dataclass(frozen=True, slots=True)
class Part:
    """Elements `start` to `stop` of a block of a table, flattened in C order."""

    block: int
    start: int
    stop: int


class LocalValues:
    """The values of a table of a worker's own, and the old ones.

    Used by the compute thread only, between the steps. Arithmetic is in the dtype in
    which the table computes.

    Args:
        table: the table.

    Attributes:
        old: what the servers know, one flat array for each block of the table.
    """

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self.old = [np.array(value).reshape(-1) for value in table.values()]

    def load_old(self, arrays: Sequence[Array]) -> None:
        """Replace the old values, one array for each block."""
        for old, array in zip(self.old, arrays, strict=True):
            old[...] = array.reshape(-1)

    def take_difference(
        self, parts: Sequence[Part], dtype: npt.DTypeLike, divisor: int
    ) -> list[Array]:
        """Return old - values, divided, for each part, and move the old values by it.

        Args:
            parts: the parts.
            dtype: that of the results, to which the differences are rounded.
            divisor: what they are divided by before.
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
        """Add to the values what servers have added to theirs: new - old, for each part.
        The new values are the old ones from then on."""
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
        """Take the values of servers instead of the own ones, for each part."""
        with self.table.editing() as values:
            for part, new in zip(parts, news, strict=True):
                value = values[part.block].reshape(-1)[part.start : part.stop]
                value[...] = new
                self.old[part.block][part.start : part.stop] = new


def _tiles(size: int) -> Iterator[slice]:
    return (slice(low, min(low + TILE, size)) for low in range(0, size, TILE))
