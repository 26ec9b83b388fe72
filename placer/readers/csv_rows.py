"""Read the rows of a `csv:` file into memory, as columns of the inputs' dtypes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placer.config.columns import Column, select_columns
from placer.config.csv import Csv, check, check_pattern, first_match
from placer.errors import DataError
from placer.readers.arguments import ReadOptions, ReadRequest
from placer.readers.column import dtype_of
from placer.readers.csv_batches import Batch, read_batches
from placer.readers.csv_cells import CellParser
from placer.readers.csv_text import find_line, open_table
from placer.readers.digests import join_digests
from placer.readers.rows import LoadedRows, join_chunks


def read(request: ReadRequest) -> LoadedRows:
    """Read all rows of the file, or those of a split.

    An input is fed by as many columns as one row of it has values, in C order. Blanks
    around a cell are ignored.

    Raises:
        DataError: with the file and, if known, the line, the column and the text.
    """
    source, options = request.source.text, request.options
    form = request.data.csv or Csv()
    columns = request.columns
    if problem := check(form):
        _, message, hint = problem
        raise DataError(f"{source}: {message}", hint=hint)
    path = request.folder / request.source.path
    with open_table(source, path, form) as table:
        names = table.names
        for pattern in (*form.vocabulary, *form.unknown, *form.missing):
            check_pattern(source, pattern, names)
        parsers = {c.name: _parsers_of(request, c, names, form) for c in columns}
        other_parsers = {
            c.name: _parsers_of(request, c, names, form) for c in options.other_columns
        }
        every = [*parsers.values(), *other_parsers.values()]
        wanted = sorted({index for feeding in every for index, _ in feeding})
        chunks, digests = _read_chunks(
            columns,
            parsers,
            other_parsers,
            read_batches(table, path, form, wanted),
            lambda row: find_line(source, path, form, row),
            options,
        )
    return join_chunks(request, chunks, digests)


def _parsers_of(
    request: ReadRequest,
    column: Column,
    names: Sequence[str],
    form: Csv,
) -> list[tuple[int, CellParser]]:
    """Return the columns that feed an input: for each one, its index in a row and its
    parser."""
    source = request.source.text
    matching = select_columns(request.source, column, request.feeds[column.name], names)
    return [
        (
            names.index(name),
            CellParser(
                source,
                name,
                column,
                dtype_of(column, source),
                _words(first_match(form.vocabulary, name)),
                first_match(form.unknown, name),
                first_match(form.missing, name),
            ),
        )
        for name in matching
    ]


def _words(
    vocabulary: Sequence[str] | Mapping[str, int] | None,
) -> Mapping[str, int] | None:
    if vocabulary is None or isinstance(vocabulary, Mapping):
        return vocabulary
    return {word: index for index, word in enumerate(vocabulary)}


def _read_chunks(
    columns: Sequence[Column],
    parsers: Mapping[str, list[tuple[int, CellParser]]],
    other_parsers: Mapping[str, list[tuple[int, CellParser]]],
    batches: Iterator[Batch],
    line_of: Callable[[int], int],
    options: ReadOptions,
) -> tuple[dict[str, list[np.ndarray]], dict[str, int]]:
    """Read all rows in chunks.

    `line_of` returns the line of a row in the file. Returns the chunks of each input,
    [rows, values of a row] each; and, with digests, the digest of the cells of each
    input, other columns included.
    """
    chunks: dict[str, list[np.ndarray]] = {column.name: [] for column in columns}
    digests: dict[int, int] = {}
    count = 0
    for batch in batches:
        rows = len(next(iter(batch.values())))
        for column in columns:
            chunk = np.empty((rows, len(parsers[column.name])), column.dtype)
            for j, (index, parser) in enumerate(parsers[column.name]):
                chunk[:, j] = parser.parse(batch[index], count, line_of)
            chunks[column.name].append(chunk)
        if options.with_digests:
            for index, cells in batch.items():
                digests[index] = _add_cells(cells, digests.get(index, 0))
        count += rows
        options.report(count)
    feeding = {**parsers, **other_parsers} if digests else {}
    return chunks, {
        name: join_digests(digests[index] for index, _ in each)
        for name, each in feeding.items()
    }


def _add_cells(cells: pa.StringArray, checksum: int) -> int:
    """Return the digest of some more cells, without the blanks around them, after those
    of `checksum`. It does not depend on the division of the cells into batches."""
    trimmed = pc.ascii_trim_whitespace(cells)
    one_list = pa.ListArray.from_arrays([0, len(cells)], trimmed)
    joined = pc.binary_join(one_list, "\0")[0].as_buffer()
    return zlib.crc32(b"\0", zlib.crc32(joined, checksum))
