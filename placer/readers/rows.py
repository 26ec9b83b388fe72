"""Rows that can be taken by number, as typed columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from placer.memory import aligned
from placer.readers.arguments import Reading
from placer.readers.digests import Digests, of_rows, sampled

NONE = Digests((), {})
"""Of rows that nothing is compared with."""


class Rows(Protocol):
    """A source that has been opened: `rows` rows, numbered from 0."""

    @property
    def rows(self) -> int: ...

    def take(
        self, indices: np.ndarray, out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """The rows of these numbers: each column `[len(indices), *shape]`.

        Of the column's dtype, C-contiguous and 64-byte aligned, or written into the
        arrays of `out`, which have that shape and dtype. IndexError for a number
        outside [0, rows).
        """
        ...

    def digests(self) -> Digests:
        """What other nodes' rows are compared with, as `Reading` says."""
        ...


@dataclass(frozen=True)
class LoadedRows:
    """Rows held in memory, one array per column."""

    columns: Mapping[str, np.ndarray]
    rows: int
    found: Digests = NONE

    def take(
        self, indices: np.ndarray, out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        indices = np.asarray(indices, np.int64)
        if indices.size and not 0 <= indices.min() <= indices.max() < self.rows:
            raise IndexError(
                f"rows {indices.min()} to {indices.max()} of {self.rows} rows"
            )
        taken = {}
        for name, column in self.columns.items():
            shape = (len(indices), *column.shape[1:])
            batch = aligned.empty(shape, column.dtype) if out is None else out[name]
            # The range is checked above; 'clip' lets numpy write into `out` directly.
            np.take(column, indices, axis=0, out=batch, mode="clip")
            taken[name] = batch
        return taken

    def digests(self) -> Digests:
        return self.found


def loaded(
    columns: Mapping[str, np.ndarray],
    rows: int,
    reading: Reading,
    whole: Mapping[str, int],
) -> LoadedRows:
    """Columns that have been read; `whole` are the digests of all rows of the source,
    in other columns too."""
    if not reading.compared:
        return LoadedRows(columns, rows)
    numbers = sampled(rows, reading.seed)
    found = of_rows({n: c[numbers] for n, c in columns.items()}, numbers.tolist())
    return LoadedRows(columns, rows, replace(found, whole=whole))
