"""Opens a `csv:` file: the names of its columns, and its rows as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from placer.errors import DataError
from placer.plan.settings.data.cell_options import Csv
from placer.readers.csv_blocks import (
    BLOCK_NBYTES,
    MalformedError,
    RowBlocks,
    open_bytes,
)
from placer.readers.csv_errors import raise_first_mistake
from placer.readers.csv_text_columns import parse_names, parse_rows


@dataclass(frozen=True)
class Table:
    """An opened file of cells.

    Attributes:
        names: the names of the columns.
        blocks: the rows, without the header.
    """

    names: list[str]
    blocks: RowBlocks

    def batches(
        self, columns: Sequence[int], most: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield some columns of all rows, or of the first `most`, as cells.

        Empty lines and comments are skipped.
        """
        count, form = 0, self.blocks.form
        while (most is None or count < most) and (text := self.blocks.take()):
            for batch in parse_rows(text, len(self.names), form, columns):
                yield batch if most is None else batch.slice(0, most - count)
                count += batch.num_rows


@contextmanager
def open_table(
    source: str, path: Path, form: Csv, nbytes: int | None = None
) -> Iterator[Table]:
    """Open a file of cells. Read its rows inside of the context.

    Args:
        source: the text of the source, for messages.
        path: the file.
        form: how the text is read.
        nbytes: the approximate number of bytes to read at a time; None for the default.

    Raises:
        DataError: with `source` and the line.
    """
    with open_bytes(source, path) as file:
        try:
            blocks = RowBlocks(file, form, nbytes or BLOCK_NBYTES)
            yield Table(_read_names(blocks), blocks)
        except (MalformedError, UnicodeDecodeError) as error:
            raise_first_mistake(source, path, form)
            raise DataError(f"{source} cannot be read: {error}") from error


def _read_names(blocks: RowBlocks) -> list[str]:
    form = blocks.form
    while (line := blocks.peek_line())[1]:
        row, nbytes = line
        names = []
        if row.strip(b"\r\n"):
            names = [name.strip() for name in parse_names(row, form)]
        if names and names == form.header:
            raise MalformedError("the first row has the names of the spec")
        if any("\0" in name for name in names):
            raise MalformedError("a name has NUL characters")
        if names and form.header is not None:
            break
        blocks.skip(nbytes)
        if any(names):  # a blank line does not name a column
            return names
    if form.header is None:
        raise MalformedError("it is empty")
    return form.header
