"""Rows of a sequence that a `python:` source returns, like PyTorch's map-style
datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placer.build.modules import Modules
from placer.config.columns import Column
from placer.config.digests import Digests
from placer.memory import aligned
from placer.readers.arguments import ReadRequest
from placer.readers.column import dtype_of
from placer.readers.digests import digest, sample_rows
from placer.readers.python_row import (
    check_is_mapping,
    check_ranges,
    read_values,
    reader_errors,
)
from placer.readers.rows import NO_DIGESTS


@dataclass(frozen=True, slots=True)
class MapStyleRows:
    """Rows of a sequence, read from it in the step that needs them, in the batch's
    order."""

    request: ReadRequest
    modules: Modules
    dataset: Sequence[Any]
    rows: int

    def take(
        self, indices: np.ndarray, out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Return rows by number, as `Rows.take`; RunError with the number of the row if
        the sequence raises."""
        columns, source = self.request.columns, self.request.source.text
        if out is None:
            out = {
                c.name: aligned.empty((len(indices), *c.shape), dtype_of(c, source))
                for c in columns
            }
        numbers = indices.tolist()
        for index, values in enumerate(self._values(numbers, columns)):
            for name, value in values.items():
                out[name][index] = value[0]
        check_ranges(self.request, out, numbers)
        return {c.name: out[c.name] for c in columns}

    def digests(self) -> Digests:
        """Return digests, as `Rows.digests`; this reads the rows that are compared."""
        options, used = self.request.options, self.request.used
        if not options.with_digests:
            return NO_DIGESTS
        numbers = sample_rows(self.rows, options.seed).tolist()
        digests: dict[str, list[int]] = {column.name: [] for column in used}
        for values in self._values(numbers, used):
            for name, value in values.items():
                digests[name].append(digest(value))
        columns = {name: tuple(values) for name, values in digests.items()}
        return Digests(tuple(numbers), columns)

    def _values(
        self, numbers: Sequence[int], columns: Sequence[Column]
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the values of each of these rows."""
        # The code of a row may import modules beside it when it is called.
        with self.modules.importable():
            for number in numbers:
                if not 0 <= number < self.rows:
                    raise IndexError(f"row {number} of {self.rows} rows")
                with reader_errors(self.request, f"at row {number}"):
                    item = self.dataset[number]
                row = check_is_mapping(self.request, item, number)
                yield read_values(self.request, row, columns, number)
