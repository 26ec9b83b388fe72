"""Open a source of a spec's `data` section, as rows of the inputs' types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from placer.config.csv import Csv
from placer.config.sources import Source, assign_columns, check_split
from placer.readers.arguments import ReadOptions, ReadRequest
from placer.readers.column import Column
from placer.readers.rows import Rows

_DEFAULT_OPTIONS = ReadOptions()


def open_source(
    source: str,
    columns: Sequence[Column],
    *,
    mapping: Mapping[str, str | list[str]] | None,
    split: str | None,
    folder: Path,
    csv: Csv | None = None,
    options: ReadOptions = _DEFAULT_OPTIONS,
) -> Rows:
    """Open a source of any kind in `placer.config.sources.KINDS`.

    All its rows are read, unless they are a sequence of a `python:` source.

    Args:
        source: the text of the source.
        columns: the inputs to read.
        mapping: the column or columns that feed an input; inputs that are left out
            have a column of their name or type. It may have entries for
            `options.other_columns` too.
        split: `train` or `test` of a kind with splits; None for all rows.
        folder: the folder that paths are relative to.
        csv: how the text of a `csv:` file is read.
        options: digests, progress reports and limits.

    Raises:
        DataError: if the source cannot be read or does not fit the inputs.
        RunError: if the code of a `python:` source raises.
    """
    parsed = Source.parse(source)
    check_split(parsed, split)
    used = (*columns, *options.other_columns)
    feeds = assign_columns(parsed, {c.name: c.dtype for c in used}, mapping)
    reader = import_module(f"placer.readers.{parsed.declaration.reader}")
    request = ReadRequest(parsed, columns, feeds, folder, split, csv or Csv(), options)
    rows: Rows = reader.read(request)
    return rows
