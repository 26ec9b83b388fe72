"""Rows of a sequence that a `python:` source returns, like PyTorch's map-style
datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placer.build.modules import Modules
from placer.config.columns import Column
from placer.config.sources import Source
from placer.errors import PlacerError
from placer.memory import aligned
from placer.readers.arguments import ReadOptions
from placer.readers.column import dtype_of
from placer.readers.digests import Digests, digest, sample_rows
from placer.readers.python_row import (
    check_is_mapping,
    check_ranges,
    raise_reader_error,
    read_values,
)
from placer.readers.rows import NO_DIGESTS


@dataclass(frozen=True, slots=True)
class MapStyleRows:
    """Rows of a sequence, read from it in the step that needs them, in the batch's
    order."""

    source: Source
    path: Path
    modules: Modules
    dataset: Sequence[Any]
    rows: int
    columns: tuple[Column, ...]
    feeds: Mapping[str, str]
    options: ReadOptions

    def take(
        self, indices: np.ndarray, out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Return rows by number, as `Rows.take`; RunError with the number of the row if
        the sequence raises."""
        if out is None:
            out = {
                c.name: aligned.empty(
                    (len(indices), *c.shape), dtype_of(c, self.source.text)
                )
                for c in self.columns
            }
        numbers = indices.tolist()
        for index, values in enumerate(self._values(numbers, self.columns)):
            for column, value in zip(self.columns, values, strict=True):
                out[column.name][index] = value[0]
        check_ranges(self.source, self.columns, self.feeds, out, numbers)
        return {c.name: out[c.name] for c in self.columns}

    def digests(self) -> Digests:
        """Return digests, as `Rows.digests`; this reads the rows that are compared."""
        if not self.options.with_digests:
            return NO_DIGESTS
        numbers = sample_rows(self.rows, self.options.seed).tolist()
        used = (*self.columns, *self.options.other_columns)
        digests: dict[str, list[int]] = {column.name: [] for column in used}
        for values in self._values(numbers, used):
            for column, value in zip(used, values, strict=True):
                digests[column.name].append(digest(value))
        columns = {name: tuple(values) for name, values in digests.items()}
        return Digests(tuple(numbers), columns)

    def _values(
        self, numbers: Sequence[int], columns: Sequence[Column]
    ) -> Iterator[list[np.ndarray]]:
        """Yield the values of each of these rows."""
        # The code of a row may import modules beside it when it is called.
        with self.modules.importable():
            for number in numbers:
                row = self._row(number)
                yield read_values(self.source, row, columns, self.feeds, number)

    def _row(self, number: int) -> Mapping[str, Any]:
        if not 0 <= number < self.rows:
            raise IndexError(f"row {number} of {self.rows} rows")
        try:
            row = self.dataset[number]
        except PlacerError:
            raise
        except (Exception, SystemExit) as error:
            raise_reader_error(self.source, self.path, f"at row {number}", error)
        return check_is_mapping(self.source, row, number)
