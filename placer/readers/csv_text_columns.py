"""Parses plain rows of a `csv:` file with pyarrow, as columns of text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.csv import (
    ConvertOptions,
    InvalidRow,
    ParseOptions,
    ReadOptions,
    read_csv,
)

from placer.plan.settings.data.cell_options import Csv
from placer.readers.csv_blocks import MalformedError, plain_delimiter

_BLANK_CELL = re.compile(r'\s*|"\s*"')


def parse_names(row: bytes, form: Csv) -> list[str]:
    """Return the cells of a row that is not an empty line."""
    plain = plain_delimiter(form)
    table = _read(row + b"\n\n", plain, ReadOptions(), ConvertOptions())
    names: list[str] = table.column_names
    if plain == form.delimiter:
        return names
    return [name.replace(plain, form.delimiter) for name in names]


def parse_rows(
    text: bytes, width: int, form: Csv, columns: Sequence[int]
) -> list[pa.RecordBatch]:
    """Return some of the `width` columns of plain rows, without blank lines.

    Raises MalformedError for a row without one cell per column.
    """
    # Column names may be repeated, so use numbers.
    names = [str(index) for index in range(width)]
    included = [names[index] for index in columns]
    reading = ReadOptions(column_names=names)
    converting = ConvertOptions(
        column_types=dict.fromkeys(included, pa.string()), include_columns=included
    )
    plain = plain_delimiter(form)
    table = _read(text, plain, reading, converting)
    if plain != form.delimiter:  # quoted cells may contain the delimiter
        cells = [
            pc.replace_substring(column, plain, form.delimiter)
            for column in table.columns
        ]
        table = pa.table(cells, names=table.column_names)
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches


def _read(
    text: bytes, delimiter: str, reading: ReadOptions, converting: ConvertOptions
) -> pa.Table:
    """Return the table in a text."""

    def skip_blank(row: InvalidRow) -> str:
        is_blank = row.actual_columns == 1 and _BLANK_CELL.fullmatch(row.text)
        return "skip" if is_blank else "error"

    parsing = ParseOptions(
        delimiter=delimiter, newlines_in_values=True, invalid_row_handler=skip_blank
    )
    reading.use_threads, reading.block_size = False, len(text) + 2
    converting.check_utf8 = False  # `plain_rows` has already decoded the text
    # A copy, because pyarrow's threads may outlive the call: a reference to a file, or
    # a call of Python, would abort the process when the interpreter ends.
    copy = pa.BufferOutputStream()
    copy.write(b"\n")  # pyarrow would remove a byte order mark at the start of a text
    copy.write(text)
    try:
        return read_csv(pa.BufferReader(copy.getvalue()), reading, parsing, converting)
    except pa.ArrowInvalid as error:
        raise MalformedError(str(error)) from None
