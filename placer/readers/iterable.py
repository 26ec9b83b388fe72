"""Collect the rows that a `python:` source yields into one array per input."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from placer.config.columns import Column
from placer.config.sources import Source
from placer.errors import DataError, PlacerError
from placer.memory import aligned
from placer.readers.arguments import MAX_ROWS, ROWS_PER_CHUNK, ReadOptions
from placer.readers.column import dtype_of
from placer.readers.digests import Digests, digest, sample_rows
from placer.readers.python_row import (
    check_is_mapping,
    check_ranges,
    raise_reader_error,
    read_values,
)
from placer.readers.rows import NO_DIGESTS, LoadedRows


def collect_rows(
    source: Source,
    path: Path,
    yielded: Iterable[Any],
    columns: Sequence[Column],
    feeds: Mapping[str, str],
    options: ReadOptions,
) -> LoadedRows:
    """Collect all rows that a source yields.

    Args:
        source: the source.
        path: the file of its module, for messages.
        yielded: the rows, one mapping from column to value each.
        columns: the inputs to read.
        feeds: the column that feeds each input, by the input's name.
        options: digests, progress reports and limits.

    Raises:
        DataError: for rows that do not fit, for more rows than the memory allows, and
            for no rows.
    """
    used = (*columns, *options.other_columns)
    buffers = [
        _ColumnBuffer(column, dtype_of(column, source.text)) for column in columns
    ]
    # Every row is digested: the rows to compare depend on the number of rows, which is
    # only known at the end.
    digests = [array("I") for _ in used] if options.with_digests else []
    max_rows = _max_rows(buffers, digests, options.nbytes)
    keys: frozenset[str] | None = None
    count = 0
    for item in _rows(source, path, yielded):
        if count >= max_rows:
            raise _too_many(source, max_rows)
        row = check_is_mapping(source, item, count)
        keys = _check_keys(source, row, keys, count)
        values = read_values(source, row, used, feeds, count)
        for buffer, value in zip(buffers, values, strict=False):
            buffer.add(value)
        for of_column, value in zip(digests, values, strict=False):
            of_column.append(digest(value))
        count += 1
        if count % ROWS_PER_CHUNK == 0:
            options.report(count)
    if count == 0:
        raise DataError(
            f"{source.text} gave no rows", hint="a source needs at least one row"
        )
    sampled = _sample([c.name for c in used], digests, count, options.seed)
    del digests
    arrays = {buffer.column.name: buffer.join() for buffer in buffers}
    check_ranges(source, columns, feeds, arrays, range(count))
    return LoadedRows(arrays, count, sampled)


CHUNK_NBYTES = 8 << 20
"""The most bytes of a chunk of rows, unless a single row is larger."""


@dataclass(slots=True)
class _ColumnBuffer:
    """The rows of one column so far, in chunks. Rows are copied, because a source may
    reuse its arrays."""

    column: Column
    dtype: np.dtype[np.generic]
    chunks: list[np.ndarray] = field(default_factory=list)
    used: int = 0

    def add(self, value: np.ndarray) -> None:
        if not self.chunks or self.used == len(self.chunks[-1]):
            rows = max(1, min(ROWS_PER_CHUNK, CHUNK_NBYTES // max(1, self.row_nbytes)))
            self.chunks.append(np.empty((rows, *self.column.shape), self.dtype))
            self.used = 0
        self.chunks[-1][self.used] = value[0]
        self.used += 1

    @property
    def row_nbytes(self) -> int:
        return int(np.prod(self.column.shape, dtype=np.int64)) * self.dtype.itemsize

    def join(self) -> np.ndarray:
        """Return all rows as one 64-byte aligned array, and drop the chunks."""
        self.chunks[-1] = self.chunks[-1][: self.used]
        rows = sum(map(len, self.chunks))
        out = aligned.empty((rows, *self.column.shape), self.dtype)
        np.concatenate(self.chunks, axis=0, out=out)
        self.chunks.clear()
        return out


def _max_rows(
    buffers: Sequence[_ColumnBuffer], digests: Sequence[array[int]], nbytes: int | None
) -> int:
    """Return how many rows may be stored."""
    if nbytes is None:
        return MAX_ROWS
    row_nbytes = sum(b.row_nbytes for b in buffers) + sum(d.itemsize for d in digests)
    return min(MAX_ROWS, nbytes // max(1, row_nbytes))


def _too_many(source: Source, max_rows: int) -> DataError:
    why = "" if max_rows == MAX_ROWS else ", which is what the memory allows"
    return DataError(
        f"{source.text} yields more than {max_rows:,} rows{why}",
        hint="end an endless source with itertools.islice, or return an object with"
        " __len__ and __getitem__, whose rows are read in the step that needs them",
    )


def _sample(
    names: Sequence[str], digests: Sequence[array[int]], count: int, seed: int
) -> Digests:
    if not digests:
        return NO_DIGESTS
    numbers = sample_rows(count, seed).tolist()
    by_name = dict(zip(names, digests, strict=True))
    return Digests(
        tuple(numbers),
        {name: tuple(column[n] for n in numbers) for name, column in by_name.items()},
        {
            name: digest(np.asarray(column, np.uint32))
            for name, column in by_name.items()
        },
    )


def _rows(source: Source, path: Path, yielded: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows; an exception of the source becomes RunError with its row."""
    number = 0
    try:
        for row in yielded:
            yield row
            number += 1
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        raise_reader_error(source, path, f"at row {number}", error)


def _check_keys(
    source: Source, row: Mapping[str, Any], keys: frozenset[str] | None, number: int
) -> frozenset[str]:
    row_keys = frozenset(row)
    if keys is None or row_keys == keys:
        return row_keys
    missing, extra = sorted(keys - row_keys, key=str), sorted(row_keys - keys, key=str)
    difference = f"lacks '{missing[0]}'" if missing else f"has '{extra[0]}'"
    comparison = "which row 0 has" if missing else "which row 0 does not have"
    raise DataError(
        f"{source.text}: row {number} {difference}, {comparison}",
        hint="every row has the same keys",
    )
