"""Reads the columns of a `csv:` file, and counts its rows."""

from __future__ import annotations

from placer.plan.settings.data.cell_options import Csv
from placer.readers.arguments import ReadRequest
from placer.readers.csv_file import open_table
from placer.readers.csv_rows import find_columns
from placer.readers.pieces import OpenFile
from placer.readers.streams.contents import Contents


def read(request: ReadRequest, file: OpenFile, with_rows: bool) -> Contents:
    """Return the contents. Without rows, only the first block of the file is read."""
    rows = 0
    with open_table(request.source.text, file.path, request.data.csv or Csv()) as table:
        feeds, _ = find_columns(request, table.names)
        for batch in table.batches([0]) if with_rows else ():
            rows += batch.num_rows
            request.options.report(rows)
    return Contents(dict.fromkeys(feeds.read, ""), rows)
