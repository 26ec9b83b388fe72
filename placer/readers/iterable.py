"""Collects the rows that a `python:` source yields into one array per input."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from placer.errors import DataError, PlacerError
from placer.plan.settings.data.digests import Digests
from placer.readers.arguments import ReadRequest
from placer.readers.chunks import split_arrays
from placer.readers.column import dtype_of
from placer.readers.digests import digest, sample_rows
from placer.readers.python_row import check_is_mapping, raise_reader_error
from placer.readers.python_values import python_values
from placer.readers.rows import NO_DIGESTS, LoadedRows

ROWS_PER_CHUNK = 256
"""The number of rows to join at a time; they should stay in the cache.

Progress is reported at the same interval.
"""
MAX_ROWS = 100_000_000
"""The maximum number of rows that a function may yield."""


def collect_rows(request: ReadRequest, yielded: Iterable[Any]) -> LoadedRows:
    """Collect all rows that a source yields, each a mapping from column to value.

    Raises:
        DataError: if rows do not fit, exceed the memory limit, or are missing.
    """
    source, options = request.source.text, request.options
    max_rows = _max_rows(request)
    chunks: dict[str, list[np.ndarray]] = {c.name: [] for c in request.columns}
    # Every row is digested, because the choice of rows to compare depends on their
    # total number.
    digests = {c.name: array("I") for c in request.used if options.with_digests}
    keys: frozenset[str] | None = None
    values = python_values(request, None)
    operands: list[dict[str, Any]] = []
    count = 0

    def compute() -> None:
        """Compute features for the rows added since the last call."""
        first = count - len(operands)
        computed = values.compute(operands, request.used, range(first, count))
        for name, of_rows in computed.items():
            if name in chunks:
                chunks[name].append(of_rows)
            if name in digests:
                digests[name].extend(map(digest, of_rows))
        operands.clear()

    for item in islice(_rows(request, yielded), options.first_rows):
        if count >= max_rows:
            limit = "" if max_rows == MAX_ROWS else ", the limit of the memory"
            raise DataError(
                f"{source} yields more than {max_rows:,} rows{limit}",
                hint="limit an endless source with itertools.islice, or return an"
                " object with __len__ and __getitem__, whose rows are read when"
                " steps need them",
            )
        row = check_is_mapping(request, item, count)
        if keys is None:
            values = python_values(request, row)
        keys = _check_keys(request, row, keys, count)
        read = values.read(row, request.used, count)
        for name, array_of_row in read.items():
            if name in chunks:  # the source may reuse its arrays
                chunks[name].append(array_of_row.copy())
            if name in digests:
                digests[name].append(digest(array_of_row))
        operands.append(values.operands(row, request.used, count))
        count += 1
        if count % ROWS_PER_CHUNK == 0:
            for name in read.keys() & chunks.keys():
                rows = chunks[name]
                rows[-ROWS_PER_CHUNK:] = [np.concatenate(rows[-ROWS_PER_CHUNK:])]
            compute()
            options.report(count)
    if count == 0:
        raise DataError(f"{source} has no rows", hint="a source needs at least one row")
    compute()
    sampled = _sample(digests, count, options.seed)
    arrays = {
        c.name: np.concatenate(chunks.pop(c.name)).reshape(count, *c.shape)
        for c in request.columns
    }
    arrays = split_arrays(request, arrays)
    values.check_ranges(arrays, range(count))
    return LoadedRows(arrays, count, sampled)


def _max_rows(request: ReadRequest) -> int:
    options = request.options
    sizes = [
        prod(c.shape) * dtype_of(c, request.source.text).itemsize
        for c in request.columns
    ]
    if options.nbytes is None:
        return MAX_ROWS
    digests = array("I").itemsize * len(request.used) * options.with_digests
    return min(MAX_ROWS, options.nbytes // max(1, sum(sizes) + digests))


def _sample(digests: Mapping[str, array[int]], count: int, seed: int) -> Digests:
    if not digests:
        return NO_DIGESTS
    numbers = sample_rows(count, seed).tolist()
    return Digests(
        tuple(numbers),
        {name: tuple(rows[n] for n in numbers) for name, rows in digests.items()},
        {name: digest(np.asarray(rows)) for name, rows in digests.items()},
    )


def _rows(request: ReadRequest, yielded: Iterable[Any]) -> Iterator[Any]:
    """Yield the rows. An exception of the source becomes a RunError with the row."""
    number = 0
    try:
        for row in yielded:
            yield row
            number += 1
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        raise_reader_error(request, f"at row {number}", error)


def _check_keys(
    request: ReadRequest,
    row: Mapping[str, Any],
    keys: frozenset[str] | None,
    number: int,
) -> frozenset[str]:
    row_keys = frozenset(row)
    if keys is None or row_keys == keys:
        return row_keys
    missing, extra = sorted(keys - row_keys, key=str), sorted(row_keys - keys, key=str)
    difference = f"lacks '{missing[0]}'" if missing else f"has '{extra[0]}'"
    comparison = "which row 0 has" if missing else "which row 0 does not have"
    raise DataError(
        f"{request.source.text}: row {number} {difference}, {comparison}",
        hint="every row must have the same keys",
    )
