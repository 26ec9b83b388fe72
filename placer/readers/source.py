"""Opens a source of a spec's `data` section, as rows of the inputs' types."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.source import Data
from placer.plan.settings.data.sources import assign_columns, check_split
from placer.readers.arguments import ReadOptions, ReadRequest
from placer.readers.pieces import PieceRows
from placer.readers.rows import Rows

_DEFAULT_OPTIONS = ReadOptions()


def open_source(
    data: Data,
    columns: Sequence[Column],
    folder: Path,
    options: ReadOptions = _DEFAULT_OPTIONS,
) -> Rows:
    """Open a source of any kind in `placer.plan.settings.data.sources.KINDS`.

    All its rows are read now, unless they are a sequence of a `python:` source.

    Args:
        data: the settings of the source. An input without an entry in `data.columns`
            reads the column of its name. `data.columns` may include
            `options.other_columns`.
        columns: the inputs to read.
        folder: the folder that paths are relative to.
        options: digests, progress reports and limits.

    Raises:
        DataError: if the source cannot be read or does not fit the inputs.
        RunError: if the code of a `python:` source raises.
    """
    request = make_request(data, columns, folder, options)
    reader = import_module(f"placer.readers.{request.source.declaration.reader}")
    rows: Rows = reader.read(request)
    return rows


def open_pieces(
    data: Data,
    columns: Sequence[Column],
    folder: Path,
    options: ReadOptions = _DEFAULT_OPTIONS,
) -> PieceRows:
    """Open a source of a kind with `pieces`; its rows are read later.

    Raises:
        DataError: if the source cannot be read in pieces, or does not fit the inputs.
    """
    request = make_request(data, columns, folder, options)
    kind = request.source.kind
    opened: PieceRows = import_module(f"placer.readers.{kind}_pieces").open_pieces(
        request
    )
    return opened


def make_request(
    data: Data,
    columns: Sequence[Column],
    folder: Path,
    options: ReadOptions = _DEFAULT_OPTIONS,
) -> ReadRequest:
    """Return the request to read inputs from a source; see `open_source`."""
    source = data.parsed
    check_split(source, data.split)
    used = (*columns, *options.other_columns)
    feeds = assign_columns(source, {c.name: c.dtype for c in used}, data.columns)
    return ReadRequest(data, source, columns, feeds, folder, options)
