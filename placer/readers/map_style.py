"""Rows of a sequence that a `python:` source returns.

It is like a map-style dataset of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placer.plan.modules import Modules
from placer.plan.settings.data.digests import Digests
from placer.readers.arguments import ReadRequest
from placer.readers.column import dtype_of
from placer.readers.digests import digest, sample_rows
from placer.readers.python_row import check_is_mapping, reader_errors
from placer.readers.python_values import PythonValues, Row
from placer.readers.rows import NO_DIGESTS, LateRows
from placer.system.memory import aligned


@dataclass(frozen=True, slots=True)
class MapStyleRows(LateRows):
    """Rows of a sequence, read when they are taken, in the batch's order."""

    request: ReadRequest
    modules: Modules
    dataset: Sequence[Any]
    rows: int
    values: PythonValues

    def take(
        self, indices: np.ndarray, out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Return rows by number, as `Rows.take` does.

        If the sequence raises, the RunError has the number of the row.
        """
        columns, source = self.request.columns, self.request.source.text
        if out is None:
            out = {
                c.name: aligned.empty((len(indices), *c.shape), dtype_of(c, source))
                for c in columns
            }
        numbers = indices.tolist()
        operands: list[Mapping[str, Any]] = []
        for index, row in enumerate(self._rows(numbers)):
            number = numbers[index]
            for name, value in self.values.read(row, columns, number).items():
                out[name][index] = value[0]
            operands.append(self.values.operands(row, columns, number))
        for name, array in self.values.compute(operands, columns, numbers).items():
            out[name][...] = array
        self.values.check_ranges(out, numbers)
        return {c.name: out[c.name] for c in columns}

    def digests(self) -> Digests:
        """Return digests, as `Rows.digests` does. This reads the rows to compare."""
        options, used = self.request.options, self.request.used
        if not options.with_digests:
            return NO_DIGESTS
        numbers = sample_rows(self.rows, options.seed).tolist()
        digests: dict[str, list[int]] = {column.name: [] for column in used}
        operands: list[Mapping[str, Any]] = []
        for number, row in zip(numbers, self._rows(numbers), strict=True):
            for name, value in self.values.read(row, used, number).items():
                digests[name].append(digest(value))
            operands.append(self.values.operands(row, used, number))
        for name, array in self.values.compute(operands, used, numbers).items():
            digests[name] = [digest(value) for value in array]
        columns = {name: tuple(values) for name, values in digests.items()}
        return Digests(tuple(numbers), columns)

    def _rows(self, numbers: Sequence[int]) -> Iterator[Row]:
        # The code of a row may import modules next to it when it is called.
        with self.modules.importable():
            for number in numbers:
                if not 0 <= number < self.rows:
                    raise IndexError(f"row {number} of {self.rows} rows")
                yield read_item(self.request, self.dataset, number)


def read_item(request: ReadRequest, dataset: Sequence[Any], number: int) -> Row:
    """Return a row of a sequence.

    Raises RunError if the sequence raises, and DataError if the row is not a mapping.
    """
    with reader_errors(request, f"at row {number}"):
        item = dataset[number]
    return check_is_mapping(request, item, number)
