"""An array that grows while rows are read."""

from __future__ import annotations

import numpy as np

from placer.plan.settings.data.columns import Column
from placer.readers.arguments import ReadRequest
from placer.readers.column import dtype_of


class GrowingArray:
    """The rows of an input, [rows, *shape], in one array that grows at its end."""

    def __init__(self, request: ReadRequest, column: Column, expected: int = 0) -> None:
        self._shape, self._dtype = column.shape, dtype_of(column, request.source.text)
        self._count = 0
        try:
            self._rows: np.ndarray = np.empty((expected, *self._shape), self._dtype)
        except (MemoryError, ValueError):  # a damaged file may claim any number of rows
            self._rows = np.empty((0, *self._shape), self._dtype)

    def extend(self, count: int) -> np.ndarray:
        """Return the rows from the current number to `count`, to be filled."""
        if count > len(self._rows):
            # No other array refers to the memory, so it may move.
            size = max(count, len(self._rows) + len(self._rows) // 4)
            self._rows.resize((size, *self._shape), refcheck=False)
        first, self._count = self._count, count
        return self._rows[first:count]

    def take_rows(self) -> np.ndarray:
        return self._rows[: self._count]
