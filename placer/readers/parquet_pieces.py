"""Reads a `parquet:` file in pieces: its row groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from pyarrow.parquet import FileMetaData, ParquetFile, RowGroupMetaData

from placer.readers.arguments import ReadRequest
from placer.readers.file_sets import SameColumns, files_of
from placer.readers.parquet import find_columns, parquet_errors, types_of
from placer.readers.pieces import Batch, Columns, OpenFile, PieceRows, joined_pieces
from placer.system.descriptors import allow_open_files

_BUFFER_NBYTES = 32 << 10
"""The number of bytes of a column to read from the file at a time."""
_PAGE_NBYTES = 1 << 20
"""The size that pages and dictionaries of usual writers hardly exceed."""
_TAIL_NBYTES = 8
"""The size of the end of a file: the length of the footer, and a mark."""


def open_pieces(request: ReadRequest) -> PieceRows:
    """Open the files, and read only their footers.

    Raises DataError if a file cannot be read or does not fit the inputs.
    """
    same, requests = SameColumns(), [*files_of(request)]
    allow_open_files(len(requests))  # a window keeps them open
    return joined_pieces([_open_one(one, same) for one in requests])


def _open_one(request: ReadRequest, same: SameColumns) -> PieceRows:
    source, options = request.source.text, request.options
    with parquet_errors(source):
        file = OpenFile(source, request.folder / request.source.path)
        with _open(file, None) as table:
            metadata, schema = table.metadata, table.schema_arrow
        find_columns(request, schema)  # checks the inputs of other processes as well
        own = replace(request, options=replace(options, other_columns=()))
        feeds, form = find_columns(own, schema)
        same.check(source, feeds, types_of(schema))
        groups = range(metadata.num_row_groups)
        counts = tuple(metadata.row_group(i).num_rows for i in groups)
        digest = None
        if options.with_digests:
            mark = file.read(file.size - _TAIL_NBYTES, file.size)
            tail = _TAIL_NBYTES + int.from_bytes(mark[:4], "little")
            digest = file.digest(tail, options.seed)
    starts = tuple(accumulate(counts, initial=0))
    columns = Columns(own, feeds, form)
    reader = _RowGroups(source, file, metadata, starts, columns)
    sizes = (_open_nbytes(metadata.row_group(i), feeds.read) for i in groups)
    return PieceRows(counts, columns, reader, digest, max(sizes, default=0))


def _open_nbytes(group: RowGroupMetaData, names: Iterable[str]) -> int:
    """Return the approximate bytes for reading a row group: pages and dictionaries."""
    chunks = map(group.column, range(group.num_columns))
    # The path of a value inside of lists continues after the name, which may contain dots.
    starts = tuple(f"{name}." for name in names)
    return sum(
        _BUFFER_NBYTES + 2 * min(chunk.total_uncompressed_size, 2 * _PAGE_NBYTES)
        for chunk in chunks
        if f"{chunk.path_in_schema}.".startswith(starts)
    )


def _open(file: OpenFile, metadata: FileMetaData | None) -> ParquetFile:
    return ParquetFile(
        file.stream(),
        metadata=metadata,
        buffer_size=_BUFFER_NBYTES,
        pre_buffer=False,
        page_checksum_verification=True,
    )


@dataclass(frozen=True)
class _RowGroups:
    """Reads row groups; `starts` are the numbers of rows before each group."""

    source: str
    file: OpenFile
    metadata: FileMetaData
    starts: tuple[int, ...]
    columns: Columns

    def read(self, piece: int, rows: int) -> Iterator[Batch]:
        """Yield the rows of a group, `rows` at a time; only their pages are in memory."""
        self.file.check_unchanged()
        first, names = self.starts[piece], self.columns.feeds.read
        with parquet_errors(self.source), _open(self.file, self.metadata) as table:
            for batch in table.iter_batches(
                rows, row_groups=[piece], columns=names, use_threads=False
            ):
                cells = {name: batch.column(name) for name in names}
                yield Batch(first, cells, self.columns)
                first += batch.num_rows
            self.file.check_unchanged()
