"""Reads the rows of a `csv:` file into memory, as columns of the inputs' dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from placer.plan.settings.data.cell_options import (
    Csv,
    check_effects,
    first_match,
    operands_of,
)
from placer.plan.settings.data.columns import Column
from placer.readers.arguments import ReadRequest
from placer.readers.cell_numbers import CellParser, add_cells
from placer.readers.chunks import CollectedRows, FileFormat
from placer.readers.column import dtype_of
from placer.readers.csv_errors import find_line
from placer.readers.csv_file import open_table
from placer.readers.csv_header import header_explained
from placer.readers.features.cells import Cells
from placer.readers.feeds import Feeds, find_feeds, wanted_columns
from placer.readers.file_sets import SameColumns, files_of
from placer.readers.rows import LoadedRows


def read(request: ReadRequest) -> LoadedRows:
    """Read all rows of the file, or the rows of a split.

    An input with n values per row is fed by n columns, in C order. Blanks around a cell
    are ignored.

    Raises:
        DataError: with the file and, if known, the line, the column and the text.
    """
    collected, form = CollectedRows(request), request.data.csv or Csv()
    same = SameColumns()
    for one in files_of(request):
        path = one.folder / one.source.path
        with open_table(one.source.text, path, form) as table:
            feeds, shape = find_columns(one, table.names)
            same.check(one.source.text, feeds, {})
            if collected.is_enough:
                continue
            indices = [table.names.index(name) for name in feeds.read]
            batches = (
                dict(zip(feeds.read, batch.columns, strict=True))
                for batch in table.batches(indices, request.options.first_rows)
            )
            collected.add(feeds, batches, shape)
        if collected.is_enough and not request.options.all_files:
            break
    return collected.loaded()


def find_columns(
    request: ReadRequest, names: Sequence[str]
) -> tuple[Feeds, FileFormat]:
    """Return the columns of a file that feed the inputs, and their format.

    `names` are the columns of the file. Raises DataError if they do not fit the inputs.
    """
    form = request.data.csv or Csv()
    wanted = [each for c in request.used for each in wanted_columns(request, c.name)]
    wanted += operands_of(request.data.features)
    with header_explained(names, form, wanted):
        if request.is_first and not request.options.to_predict:
            check_effects(request.source, form, names, request.data.features)
        return find_feeds(request, names), _CsvFormat(request, form)


@dataclass(frozen=True)
class _CsvFormat:
    """Converts the cells of a file to values of inputs, or to cells for features."""

    request: ReadRequest
    form: Csv
    parsers: dict[tuple[str, str], CellParser] = field(default_factory=dict)

    def parse(
        self, column: Column, name: str, array: pa.StringArray, first: int
    ) -> np.ndarray:
        key = column.name, name
        if key not in self.parsers:
            self.parsers[key] = CellParser(
                self.request.source.kind,
                name,
                column,
                dtype_of(column, self.request.source.text),
                self.form.words(name),
                first_match(self.form.unknown, name),
                first_match(self.form.missing, name),
                self.form.markers(name),
            )
        return self.parsers[key].parse(array, partial(self.where, name, first))

    def cells(self, name: str, array: pa.StringArray, first: int) -> Cells:
        missing = first_match(self.form.missing, name)
        where = partial(self.where, name, first)
        markers = self.form.markers(name)
        return Cells(name, array, True, missing, "csv", where, markers)

    def where(self, name: str, first: int, i: int) -> str:
        source, path = self.request.source, self.request.folder
        line = find_line(source.text, path / source.path, self.form, first + i)
        return f"{source.text}: line {line}, column '{name}'"

    def add_digest(self, array: pa.StringArray, digest: int) -> int:
        return add_cells(array, digest)
