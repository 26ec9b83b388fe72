"""Rows of an opened source, returned by number as typed columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from placer.plan.settings.data.digests import Digests
from placer.readers.arguments import ReadOptions
from placer.readers.digests import digest, sample_rows
from placer.system.memory import aligned

NO_DIGESTS = Digests((), {})
"""The digests of rows that are not compared."""


class Rows(Protocol):
    """An opened source with rows numbered from 0. Several threads may use it."""

    @property
    def rows(self) -> int:
        """The number of rows."""
        ...

    def take(
        self, indices: np.ndarray, out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the rows with these numbers, by input.

        Args:
            indices: row numbers, int64[n].
            out: arrays to write the rows into, of the shape and dtype of the result.

        Returns:
            For each input, the array of `out`, or a C-contiguous and 64-byte aligned
            array of shape [n, *shape] and of the input's dtype.

        Raises:
            IndexError: if a number is outside [0, rows).
        """
        ...

    def digests(self) -> Digests:
        """Return the digests to compare with other processes (see `ReadOptions`)."""
        ...


class LateRows:
    """The base of rows that are not in memory: a run takes them ahead of its steps."""

    __slots__ = ()


@dataclass(frozen=True)
class LoadedRows:
    """Rows in memory, one array per column."""

    columns: Mapping[str, np.ndarray]
    rows: int
    stored_digests: Digests = NO_DIGESTS

    @property
    def nbytes(self) -> int:
        """The bytes of all rows."""
        return sum(column.nbytes for column in self.columns.values())

    def take(
        self, indices: np.ndarray, out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        indices = np.asarray(indices, np.int64)
        if indices.size and not 0 <= indices.min() <= indices.max() < self.rows:
            raise IndexError(
                f"rows {indices.min()} to {indices.max()} of {self.rows} rows"
            )
        batches = {}
        for name, column in self.columns.items():
            shape = (len(indices), *column.shape[1:])
            batch = aligned.empty(shape, column.dtype) if out is None else out[name]
            # The range is checked above. With 'clip' NumPy writes into `out` directly
            # instead of into a buffer.
            np.take(column, indices, axis=0, out=batch, mode="clip")
            batches[name] = batch
        return batches

    def digests(self) -> Digests:
        return self.stored_digests


def make_loaded_rows(
    columns: Mapping[str, np.ndarray], options: ReadOptions, whole: Mapping[str, int]
) -> LoadedRows:
    """Return rows in memory, with digests if `options` ask for them.

    `whole` holds digests of all rows of the source, also of other columns.
    """
    rows = next(map(len, columns.values()), 0)
    if not options.with_digests:
        return LoadedRows(columns, rows)
    numbers = sample_rows(rows, options.seed)
    sampled = {
        name: tuple(map(digest, column[numbers])) for name, column in columns.items()
    }
    return LoadedRows(columns, rows, Digests(tuple(numbers.tolist()), sampled, whole))
