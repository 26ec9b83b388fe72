"""Open a source of a spec's `data` section, as rows of the inputs' types."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from placer.config.columns import Column
from placer.config.data import Data
from placer.config.sources import assign_columns, check_split
from placer.readers.arguments import ReadOptions, ReadRequest
from placer.readers.rows import Rows

_DEFAULT_OPTIONS = ReadOptions()


def open_source(
    data: Data,
    columns: Sequence[Column],
    folder: Path,
    options: ReadOptions = _DEFAULT_OPTIONS,
) -> Rows:
    """Open a source of any kind in `placer.config.sources.KINDS`.

    All its rows are read, unless they are a sequence of a `python:` source.

    Args:
        data: the settings of the source. Inputs that `data.columns` leaves out have a
            column of their name or type; it may have `options.other_columns` too.
        columns: the inputs to read.
        folder: the folder that paths are relative to.
        options: digests, progress reports and limits.

    Raises:
        DataError: if the source cannot be read or does not fit the inputs.
        RunError: if the code of a `python:` source raises.
    """
    source = data.parsed
    check_split(source, data.split)
    used = (*columns, *options.other_columns)
    feeds = assign_columns(source, {c.name: c.dtype for c in used}, data.columns)
    reader = import_module(f"placer.readers.{source.declaration.reader}")
    rows: Rows = reader.read(ReadRequest(data, source, columns, feeds, folder, options))
    return rows
