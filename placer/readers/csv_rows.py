"""Read the rows of a `csv:` file into memory, as columns of the inputs' dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from placer.config.columns import Column
from placer.config.csv import Csv, check, check_pattern, first_match
from placer.errors import DataError
from placer.readers.arguments import ReadRequest
from placer.readers.chunks import collect_batches, columns_of
from placer.readers.column import dtype_of
from placer.readers.csv_batches import Batch, read_batches
from placer.readers.csv_cells import CellParser, add_cells
from placer.readers.csv_text import find_line, open_table
from placer.readers.rows import LoadedRows


def read(request: ReadRequest) -> LoadedRows:
    """Read all rows of the file, or those of a split.

    An input is fed by as many columns as one row of it has values, in C order. Blanks
    around a cell are ignored.

    Raises:
        DataError: with the file and, if known, the line, the column and the text.
    """
    path, form = request.folder / request.source.path, csv_form(request)
    with open_table(request.source.text, path, form) as table:
        wanted, collect = find_columns(request, table.names)
        return collect(read_batches(table, path, form, wanted), 0)


def csv_form(request: ReadRequest) -> Csv:
    """Return the options of the source; DataError if they are not valid."""
    form = request.data.csv or Csv()
    if problem := check(form):
        _, message, hint = problem
        raise DataError(f"{request.source.text}: {message}", hint=hint)
    return form


def find_columns(
    request: ReadRequest, names: Sequence[str]
) -> tuple[list[str], Callable[[Iterable[Batch], int], LoadedRows]]:
    """Return the columns of a file that are read, and a function that collects their
    rows from batches of them, given the number of the first row in the file.

    `names` are the columns of the file. Raises DataError if they do not fit the inputs.
    """
    source, form = request.source.text, csv_form(request)
    path = request.folder / request.source.path
    if not request.options.to_predict:
        for pattern in (*form.vocabulary, *form.unknown, *form.missing):
            check_pattern(source, pattern, names)
    feeds = {c.name: columns_of(request, c, names) for c in request.used}
    parsers = {
        (column.name, name): CellParser(
            request.source.kind,
            name,
            column,
            dtype_of(column, source),
            form.words(name),
            first_match(form.unknown, name),
            first_match(form.missing, name),
        )
        for column in request.used
        for name in feeds[column.name]
    }
    line_of = partial(find_line, source, path, form)

    def parse(
        column: Column, name: str, cells: pa.StringArray, first: int
    ) -> np.ndarray:
        def where(i: int) -> str:
            return f"{source}: line {line_of(first + i)}, column '{name}'"

        return parsers[column.name, name].parse(cells, where)

    def collect(batches: Iterable[Batch], first: int) -> LoadedRows:
        return collect_batches(request, feeds, batches, parse, add_cells, first)

    return list(dict.fromkeys(name for _, name in parsers)), collect
