"""Reads the rows of a file in batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from placer.errors import DataError
from placer.plan.settings.data.columns import Column
from placer.plan.settings.data.sources import SourceError, errors_of_input
from placer.readers.arguments import ReadRequest
from placer.readers.digests import join_digests
from placer.readers.features.computation import Computation, Values
from placer.readers.features.input_values import input_values
from placer.readers.feeds import Feeds
from placer.readers.growing_array import GrowingArray
from placer.readers.rows import LoadedRows, make_loaded_rows
from placer.readers.split import split_rows

if TYPE_CHECKING:  # every run imports this module, and pyarrow starts threads
    import pyarrow as pa

    from placer.readers.features.cells import Cells


class FileFormat(Protocol):
    """Converts the columns of a file format to values.

    In all methods, `first` is the number of the first row in the file.
    """

    def parse(self, column: Column, name: str, array: pa.Array, first: int) -> Values:
        """Return a column as values of an input, [rows, ...] and of its dtype."""
        ...

    def cells(self, name: str, array: pa.Array, first: int) -> Cells:
        """Return a column as cells, to compute features from them."""
        ...

    def where(self, name: str, first: int, i: int) -> str:
        """Return the position of row `first + i` of a column, for messages."""
        ...

    def add_digest(self, array: pa.Array, digest: int) -> int:
        """Return the digest of a column after more rows."""
        ...


class CollectedRows:
    """The rows of the files of a source, which are read one after another.

    Besides these rows, only one batch is in memory.

    Args:
        request: the inputs.
        expected: the approximate number of rows.
    """

    def __init__(self, request: ReadRequest, expected: int = 0) -> None:
        self._request = request
        self._arrays = {
            c.name: GrowingArray(request, c, expected) for c in request.columns
        }
        self._digests: dict[str, int] = {}
        self._feeds: Feeds | None = None
        self._count = 0

    @property
    def is_enough(self) -> bool:
        """Whether the rows suffice to check the source."""
        most = self._request.options.first_rows
        return most is not None and self._count >= most

    def add(
        self,
        feeds: Feeds,
        batches: Iterable[Mapping[str, pa.Array]],
        form: FileFormat,
    ) -> None:
        """Read a file.

        Args:
            feeds: the columns that feed the inputs.
            batches: the columns of each batch of rows, by name.
            form: how the columns become values.

        Raises:
            DataError: if a value does not fit.
        """
        self._feeds, options = feeds, self._request.options
        first = self._count
        for batch in batches:
            rows = len(next(iter(batch.values())))
            if rows == 0:
                continue
            before, self._count = self._count, self._count + rows
            chunks = {n: array.extend(self._count) for n, array in self._arrays.items()}
            convert_batch(self._request, feeds, batch, form, before - first, chunks)
            if options.with_digests:
                for name in feeds.read:
                    digest = self._digests.get(name, 0)
                    self._digests[name] = form.add_digest(batch[name], digest)
            options.report(self._count)

    def loaded(self) -> LoadedRows:
        """Return all rows, or those of the split. Raises DataError if there are none."""
        assert self._feeds is not None
        whole = {
            key: join_digests(self._digests.get(name, 0) for name in names)
            for key, names in self._feeds.sources.items()
        }
        read = {name: array.take_rows() for name, array in self._arrays.items()}
        request = self._request
        return make_loaded_rows(split_arrays(request, read), request.options, whole)


def convert_batch(
    request: ReadRequest,
    feeds: Feeds,
    batch: Mapping[str, pa.Array],
    form: FileFormat,
    first: int,
    out: Mapping[str, Values],
) -> None:
    """Convert some rows of a file to the values of the inputs.

    Args:
        request: the inputs.
        feeds: the columns that feed them.
        batch: the columns of the rows, by name.
        form: how the columns become values.
        first: the number of the first row in the file, for messages.
        out: the array to write for each input, [rows, *shape].

    Raises:
        DataError: if a value does not fit.
    """
    computed = Computation(feeds.features, partial(_cells, form, batch, first))
    for column in request.columns:
        with errors_of_input(column.name):
            _convert_column(
                request, feeds, batch, form, first, column, computed, out[column.name]
            )


def _convert_column(
    request: ReadRequest,
    feeds: Feeds,
    batch: Mapping[str, pa.Array],
    form: FileFormat,
    first: int,
    column: Column,
    computed: Computation,
    chunk: Values,
) -> None:
    names = feeds.inputs[column.name]
    parts = np.empty((len(names), chunk.size // len(names)), chunk.dtype)
    for part, name in zip(parts, names, strict=True):
        if name in feeds.features:
            values = input_values(
                computed.values(name),
                column,
                name,
                request.source.text,
                first,
                partial(form.where, name, first),
            )
        else:
            values = form.parse(column, name, batch[name], first)
        part[...] = values.reshape(-1)
    # Writing each column into the rows directly takes twice as long, because it waits
    # for memory.
    by_column = parts.reshape(len(names), len(chunk), -1)
    chunk.reshape(len(chunk), len(names), -1)[...] = by_column.transpose(1, 0, 2)


def _cells(
    form: FileFormat, batch: Mapping[str, pa.Array], first: int, name: str
) -> Cells:
    return form.cells(name, batch[name], first)


def split_arrays(request: ReadRequest, arrays: dict[str, Values]) -> dict[str, Values]:
    """Return the rows of a split by input; remove all rows from `arrays`.

    Raises DataError if there are no rows, unless they are for a prediction.
    """
    parts = {}
    for column in request.columns:
        rows = arrays.pop(column.name)
        if len(rows) == 0 and not request.options.to_predict:
            hint = "a source needs at least one row"
            raise DataError(f"{request.source.text} has no rows", hint=hint)
        part = rows[split_rows(len(rows), request.data.split)]
        if len(part) == 0 and not request.options.to_predict:
            raise SourceError(
                ("split",),
                f"{request.source.text} has {len(rows)} rows, but none of them is"
                f" in the split '{request.data.split}'",
                "leave 'split' out, or add rows to the file",
            )
        parts[column.name] = part
    return parts
