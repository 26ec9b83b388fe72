"""Read a `parquet:` file by pieces, which are its row groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from pyarrow.parquet import FileMetaData, ParquetFile

from placer.readers.arguments import ReadRequest
from placer.readers.parquet import find_columns, parquet_errors
from placer.readers.pieces import Batch, Columns, OpenFile, PieceRows

_BUFFER_NBYTES = 32 << 10
"""The bytes of a column that are read from the file at a time."""
_TAIL_NBYTES = 8
"""The end of a file: the length of the footer, and a mark."""


def open_pieces(request: ReadRequest) -> PieceRows:
    """Open a file, of which only the footer is read.

    Raises DataError if the file cannot be read or does not fit the inputs.
    """
    source, options = request.source.text, request.options
    with parquet_errors(source):
        file = OpenFile(source, request.folder / request.source.path)
        with _open(file, None) as table:
            metadata, schema = table.metadata, table.schema_arrow
        find_columns(request, schema)  # checks the inputs of other processes too
        own = replace(request, options=replace(options, other_columns=()))
        feeds, form = find_columns(own, schema)
        groups = range(metadata.num_row_groups)
        counts = tuple(metadata.row_group(i).num_rows for i in groups)
        digest = None
        if options.with_digests:
            mark = file.read(file.size - _TAIL_NBYTES, file.size)
            tail = _TAIL_NBYTES + int.from_bytes(mark[:4], "little")
            digest = file.digest(tail, options.seed)
    starts = tuple(accumulate(counts, initial=0))
    reader = _RowGroups(source, file, metadata, starts, tuple(feeds.read))
    return PieceRows(counts, Columns(own, feeds, form), reader, digest)


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
    """Reads row groups.

    Attributes:
        source: the text of the source, for messages.
        file: the file.
        metadata: its footer.
        starts: the number of rows before each group.
        names: the columns that are read.
    """

    source: str
    file: OpenFile
    metadata: FileMetaData
    starts: tuple[int, ...]
    names: tuple[str, ...]

    def read(self, piece: int, rows: int) -> Iterator[Batch]:
        """Yield the rows of a group, `rows` at a time: only the pages that they are in are
        in memory."""
        self.file.check_unchanged()
        first = self.starts[piece]
        with parquet_errors(self.source), _open(self.file, self.metadata) as table:
            for batch in table.iter_batches(
                rows, row_groups=[piece], columns=[*self.names], use_threads=False
            ):
                yield Batch(first, {name: batch.column(name) for name in self.names})
                first += batch.num_rows
