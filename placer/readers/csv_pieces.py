"""Reads a `csv:` file in pieces: ranges of its bytes with whole rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from placer.plan.settings.data.cell_options import Csv
from placer.plan.settings.data.sources import SourceError
from placer.readers.arguments import ReadRequest
from placer.readers.csv_blocks import MalformedError, plain_rows
from placer.readers.csv_file import open_table
from placer.readers.csv_rows import find_columns
from placer.readers.csv_text_columns import parse_rows
from placer.readers.file_sets import SameColumns, files_of
from placer.readers.pieces import Batch, Columns, OpenFile, PieceRows, joined_pieces
from placer.system.descriptors import allow_open_files

PIECE_NBYTES = 256 << 10
"""The approximate size of a piece, in bytes."""


def open_pieces(request: ReadRequest) -> PieceRows:
    """Open the files, and read them once to find the ends of their rows.

    Raises DataError if a file cannot be read, does not fit the inputs, or is compressed.
    """
    same, rows, files = SameColumns(), 0, []
    most = request.options.first_rows
    requests = [*files_of(request)]
    allow_open_files(len(requests))  # a window keeps them open
    for one in requests:
        files.append(_open(one, same, rows))
        rows += files[-1].rows
        if most is not None and rows >= most:
            break
    return joined_pieces(files)


def _open(request: ReadRequest, same: SameColumns, before: int) -> PieceRows:
    """Open a file after `before` rows of others."""
    source, options, form = (
        request.source.text,
        request.options,
        request.data.csv or Csv(),
    )
    path = request.folder / request.source.path
    if path.suffix == ".gz":
        raise SourceError(
            ("shuffle",),
            f"{source} is compressed, but a window reads parts of a file",
            "decompress the file, or convert it to a parquet: file",
        )
    with open_table(source, path, form, PIECE_NBYTES) as table:
        file = OpenFile(source, path)
        find_columns(
            request, table.names
        )  # checks the inputs of other processes as well
        own = replace(request, options=replace(options, other_columns=()))
        feeds, shape = find_columns(own, table.names)
        same.check(source, feeds, {})
        width = len(table.names)
        ends, starts = [table.blocks.offset], [0]
        while text := table.blocks.take():
            batches = parse_rows(text, width, form, [0])
            if rows := sum(batch.num_rows for batch in batches):
                starts.append(starts[-1] + rows)
                ends.append(table.blocks.offset)
                options.report(before + starts[-1])
            else:
                ends[-1] = table.blocks.offset
            if options.first_rows is not None and starts[-1] >= options.first_rows:
                break
        file.check_unchanged()
        digest = file.digest(0, options.seed) if options.with_digests else None
    columns = Columns(own, feeds, shape)
    reader = _Ranges(
        file, form, tuple(table.names), columns, tuple(ends), tuple(starts)
    )
    counts = tuple(b - a for a, b in pairwise(starts))
    largest = max((b - a for a, b in pairwise(ends)), default=0)
    # Four copies are in memory: the file's text, pyarrow's copy, its cells, and their text.
    return PieceRows(counts, columns, reader, digest, 4 * largest)


@dataclass(frozen=True)
class _Ranges:
    """Reads ranges of bytes: `ends` are offsets, `starts` are numbers of rows."""

    file: OpenFile
    form: Csv
    names: tuple[str, ...]
    columns: Columns
    ends: tuple[int, ...]
    starts: tuple[int, ...]

    def read(self, piece: int, rows: int) -> Iterator[Batch]:
        """Yield the rows of a piece; its text is in memory."""
        del rows
        text = self.file.read(self.ends[piece], self.ends[piece + 1])
        self.file.check_unchanged()
        wanted = self.columns.feeds.read
        indices = [self.names.index(name) for name in wanted]
        first = self.starts[piece]
        try:
            text, _ = plain_rows(text, self.form)
            batches = parse_rows(text, len(self.names), self.form, indices)
        except (MalformedError, UnicodeDecodeError):
            raise self.file.changed() from None
        if sum(batch.num_rows for batch in batches) != self.starts[piece + 1] - first:
            raise self.file.changed()
        for batch in batches:
            cells = dict(zip(wanted, batch.columns, strict=True))
            yield Batch(first, cells, self.columns)
            first += batch.num_rows
