"""Read the rows of a `csv:` file into memory, as columns of the inputs' dtypes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from placer.config.columns import Column
from placer.config.csv import Csv, check, check_pattern, first_match
from placer.errors import DataError
from placer.readers.arguments import ReadRequest
from placer.readers.chunks import collect_batches, columns_of
from placer.readers.column import dtype_of
from placer.readers.csv_batches import read_batches
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
    source, form = request.source.text, request.data.csv or Csv()
    if problem := check(form):
        _, message, hint = problem
        raise DataError(f"{source}: {message}", hint=hint)
    path = request.folder / request.source.path
    line_of = partial(find_line, source, path, form)

    def parse(
        column: Column, name: str, cells: pa.StringArray, first: int
    ) -> np.ndarray:
        def where(i: int) -> str:
            return f"{source}: line {line_of(first + i)}, column '{name}'"

        return parsers[column.name, name].parse(cells, where)

    with open_table(source, path, form) as table:
        if not request.options.to_predict:
            for pattern in (*form.vocabulary, *form.unknown, *form.missing):
                check_pattern(source, pattern, table.names)
        feeds = {c.name: columns_of(request, c, table.names) for c in request.used}
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
        wanted = list(dict.fromkeys(name for _, name in parsers))
        batches = read_batches(table, path, form, wanted)
        return collect_batches(request, feeds, batches, parse, add_cells)
