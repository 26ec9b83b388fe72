"""Rows of a sequence that a `python:` source returns, as PyTorch's map-style datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placer.build.modules import Modules
from placer.config.sources import Source
from placer.errors import PlacerError
from placer.memory import aligned
from placer.readers.arguments import Reading
from placer.readers.column import Column, dtype_of
from placer.readers.digests import Digests, digest, sampled
from placer.readers.python_row import check_ranges, fail, row_of, values_of
from placer.readers.rows import NONE


@dataclass(frozen=True, slots=True)
class AskedRows:
    """Rows of a sequence, each asked for when it is needed, in the step's order."""

    source: Source
    path: Path
    modules: Modules
    made: Sequence[Any]
    rows: int
    columns: tuple[Column, ...]
    feeds: Mapping[str, str]
    reading: Reading

    def take(
        self, indices: np.ndarray, out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """As `Rows.take`; RunError, with the row, for what the sequence raises."""
        if out is None:
            out = {
                c.name: aligned.empty(
                    (len(indices), *c.shape), dtype_of(c, self.source.text)
                )
                for c in self.columns
            }
        numbers = indices.tolist()
        for at, values in enumerate(self._values(numbers, self.columns)):
            for column, value in zip(self.columns, values, strict=True):
                out[column.name][at] = value[0]
        check_ranges(self.source, self.columns, self.feeds, out, numbers)
        return {c.name: out[c.name] for c in self.columns}

    def digests(self) -> Digests:
        """As `Rows.digests`; the rows that are compared are asked for now."""
        if not self.reading.compared:
            return NONE
        numbers = sampled(self.rows, self.reading.seed).tolist()
        used = (*self.columns, *self.reading.others)
        found: dict[str, list[int]] = {column.name: [] for column in used}
        for values in self._values(numbers, used):
            for column, value in zip(used, values, strict=True):
                found[column.name].append(digest(value))
        columns = {name: tuple(each) for name, each in found.items()}
        return Digests(tuple(numbers), columns)

    def _values(
        self, numbers: Sequence[int], columns: Sequence[Column]
    ) -> Iterator[list[np.ndarray]]:
        """The values of these rows, row by row."""
        with self.modules.reachable():  # rows may import their neighbours only now
            for number in numbers:
                row = self._row(number)
                yield values_of(self.source, row, columns, self.feeds, number)

    def _row(self, number: int) -> Mapping[str, Any]:
        if not 0 <= number < self.rows:
            raise IndexError(f"row {number} of {self.rows} rows")
        try:
            row = self.made[number]
        except PlacerError:
            raise
        except (Exception, SystemExit) as error:
            fail(self.source, self.path, f"at row {number}", error)
        return row_of(self.source, row, number)
