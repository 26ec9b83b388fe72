"""Reads the first rows of a CSV or Parquet file."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile

from placer.errors import DataError
from placer.plan.settings.data.cell_options import Csv
from placer.readers.csv_blocks import open_bytes
from placer.readers.csv_errors import find_line
from placer.readers.csv_file import open_table
from placer.readers.file_errors import file_errors
from placer.system.files.regular import open_regular

MAX_CELLS: Final = 4_000_000
"""The largest number of cells to read from a file."""
MAX_ROWS: Final = 200_000
"""The largest number of rows to read from a file."""
_PREFIX_NBYTES: Final = 1 << 18
"""The number of bytes from which the delimiter and the header of a text file are
detected."""
_DELIMITERS: Final = ",;\t|"
_TEXT: Final = (".csv", ".tsv", ".txt", ".data")
_PARQUET: Final = (".parquet", ".pq")


@dataclass(frozen=True, slots=True)
class Table:
    """The first rows of a file.

    Attributes:
        path: the file.
        kind: the kind of source that reads it, `csv` or `parquet`.
        form: the format of the text of a `csv` file.
        columns: the columns by name, as text in the case of `csv`. For a repeated name,
            the last column.
        repeated: the names that several columns have.
        read: the number of rows that were read.
        rows: the number of rows of the file, estimated if not all were read.
    """

    path: Path
    kind: str
    form: Csv
    columns: Mapping[str, pa.Array]
    repeated: frozenset[str]
    read: int
    rows: int

    def position(self, row: int) -> str:
        """Return the position of a row in the file."""
        if self.kind == "parquet":
            return f"row {row}"
        return f"line {find_line(str(self.path), self.path, self.form, row)}"

    @property
    def doubtful_header(self) -> str | None:
        """The first column name that also occurs as a word in its column, or None. Such
        a name suggests that the first row is not a header."""
        if self.form.header is not None or self.kind != "csv":
            return None
        for name, column in self.columns.items():
            if name and pc.any(pc.equal(column, name)).as_py():
                return name
        return None

    @property
    def is_whole(self) -> bool:
        """True if all rows were read."""
        return self.read == self.rows

    @property
    def has_header(self) -> bool:
        """True if the file contains the names of its columns."""
        return self.form.header is None


def read_table(path: Path) -> Table:
    """Read at most `MAX_ROWS` rows and about `MAX_CELLS` cells of a file.

    The ending of the file name determines the format: `.csv`, `.tsv`, `.txt` or `.data`,
    optionally followed by `.gz`, or `.parquet`.

    Raises:
        DataError: if the file cannot be read or has another ending.
    """
    suffix = Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()
    if suffix in _PARQUET and path.suffix != ".gz":
        return _read_parquet(path)
    if suffix in _TEXT:
        return _read_csv(path)
    raise DataError(
        f"{path} does not have the name of a CSV or Parquet file",
        hint="use a file with one of these endings: "
        f"{', '.join((*_TEXT, *_PARQUET))}, or .csv.gz",
    )


def _read_csv(path: Path) -> Table:
    form = _detect_form(path)
    with open_table(str(path), path, form) as table:
        names = table.names
        most = min(MAX_ROWS, MAX_CELLS // max(1, len(names)))
        numbers = [str(number) for number in range(len(names))]
        schema = pa.schema([(number, pa.string()) for number in numbers])
        batches = [*table.batches(range(len(names)), most + 1)]
    whole = pa.Table.from_batches(batches, schema)
    rows = whole.slice(0, most)
    columns = {
        name: pc.utf8_trim_whitespace(column.combine_chunks())
        for name, column in zip(names, rows.columns, strict=True)
    }
    count = read = rows.num_rows
    if whole.num_rows > read:
        # The size of a compressed file does not tell its number of rows. It has at least
        # one more row than was read.
        nbytes = 0 if path.suffix == ".gz" else path.stat().st_size
        lengths = (pc.sum(pc.binary_length(column)).as_py() for column in rows.columns)
        size = sum(lengths) + read * len(names)
        count = max(read + 1, round(nbytes / size * read))
    return Table(path, "csv", form, columns, _repeated(names), read, count)


def _detect_form(path: Path) -> Csv:
    hint = "use a text file of cells, or such a file in gzip format (.gz)"
    with open_bytes(str(path), path, hint) as file:
        prefix = file.read(_PREFIX_NBYTES)
    lines = prefix.decode(errors="replace").splitlines(keepends=True)
    if len(prefix) == _PREFIX_NBYTES:
        lines = lines[:-1] or lines  # Drop the last line, which may be incomplete.
    comment = "#" if lines and lines[0].startswith("#") else None
    lines = [s for s in lines if s.strip() and not (comment and s.startswith(comment))]
    # Prefer the delimiter that gives the most rows the same number of cells; among
    # equals, the one that gives more cells.
    delimiter = max(_DELIMITERS, key=lambda each: _regularity(lines, each))
    rows = _split(lines, delimiter)
    header = None
    if len(rows) > 1 and any(map(_is_number, rows[0])):
        header = [f"column{number}" for number in range(1, len(rows[0]) + 1)]
    return Csv(delimiter=delimiter, comment=comment, header=header)


def _regularity(lines: list[str], delimiter: str) -> tuple[float, int]:
    widths = Counter(map(len, _split(lines[:200], delimiter)))
    if not widths:
        return 0.0, 0
    width, count = widths.most_common(1)[0]
    return (count / widths.total() if width > 1 else 0.0), width


def _split(lines: list[str], delimiter: str) -> list[list[str]]:
    table = csv.reader(lines, delimiter=delimiter, skipinitialspace=True)
    rows = []
    try:
        for row in table:
            rows.append([cell.strip() for cell in row])
    except csv.Error:
        pass  # The reader of the whole file will report the error with its line.
    return rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> Table:
    hint = "use a file in the format of Apache Parquet"
    kinds = OSError, ValueError, pa.ArrowException
    with (
        file_errors(str(path), hint, *kinds),
        open_regular(path) as file,
        ParquetFile(file, pre_buffer=False) as table,
    ):
        schema, rows = table.schema_arrow, table.metadata.num_rows
        most = max(1, min(MAX_ROWS, MAX_CELLS // max(1, len(schema.names))))
        batches = table.iter_batches(min(most, 1 << 14), use_threads=False)
        read, kept = 0, []
        for batch in batches:
            kept.append(batch.slice(0, most - read))
            read += kept[-1].num_rows
            if read == most:
                break
        whole = pa.Table.from_batches(kept, schema)
    columns = {
        name: whole.column(index).combine_chunks()
        for index, name in enumerate(schema.names)
    }
    repeated = _repeated(schema.names)
    return Table(path, "parquet", Csv(), columns, repeated, read, rows)


def _repeated(names: list[str]) -> frozenset[str]:
    return frozenset(name for name, count in Counter(names).items() if count > 1)
