"""Collects the rows that a `python:` source yields into one array per input."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np

from placer.errors import DataError, PlacerError
from placer.plan.settings.data.digests import Digests
from placer.readers.arguments import ReadRequest
from placer.readers.blocks import collect_blocks, is_block
from placer.readers.chunks import split_arrays
from placer.readers.digests import digest, sample_rows
from placer.readers.python_row import (
    check_is_mapping,
    raise_reader_error,
    reader_errors,
)
from placer.readers.python_values import python_values
from placer.readers.row_limit import length_of, row_limit, too_many_rows
from placer.readers.rows import NO_DIGESTS, LoadedRows

ROWS_PER_CHUNK = 256
"""The number of rows to join at a time; they should stay in the cache.

Progress is reported at the same interval.
"""


def collect_rows(
    request: ReadRequest, function: Callable[..., Any], yielded: Iterable[Any]
) -> LoadedRows:
    """Collect all rows that the function of a source yields.

    Each item is a mapping from column to value, for one row or for a block of rows. The
    first item decides which.

    Raises:
        DataError: if rows do not fit, are too many or endless, or are missing.
    """
    source, options = request.source.text, request.options
    with reader_errors(request, "at row 0"):
        items = iter(yielded)
        start = list(islice(items, 1))
        length = length_of(yielded)
    if not start:
        raise DataError(f"{source} has no rows", hint="a source needs at least one row")
    if isinstance(start[0], Mapping) and is_block(request, start[0]):
        blocks = chain(start, _rest(request, items, "block", length))
        return collect_blocks(request, function, blocks, row_limit(request, length))
    max_rows = row_limit(request, length)
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

    rows = chain(start, _rest(request, items, "row", length))
    for item in islice(rows, options.first_rows):
        if count >= max_rows:
            raise too_many_rows(request, function, max_rows)
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
                parts = chunks[name]
                parts[-ROWS_PER_CHUNK:] = [np.concatenate(parts[-ROWS_PER_CHUNK:])]
            compute()
            options.report(count)
    compute()
    sampled = _sample(digests, count, options.seed)
    arrays = {
        c.name: np.concatenate(chunks.pop(c.name)).reshape(count, *c.shape)
        for c in request.columns
    }
    arrays = split_arrays(request, arrays)
    values.check_ranges(arrays, range(count))
    return LoadedRows(arrays, count, sampled)


def _sample(digests: Mapping[str, array[int]], count: int, seed: int) -> Digests:
    if not digests:
        return NO_DIGESTS
    numbers = sample_rows(count, seed).tolist()
    return Digests(
        tuple(numbers),
        {name: tuple(rows[n] for n in numbers) for name, rows in digests.items()},
        {name: digest(np.asarray(rows)) for name, rows in digests.items()},
    )


def _rest(
    request: ReadRequest, items: Iterator[Any], what: str, length: int | None
) -> Iterator[Any]:
    """Yield all items but the first. An exception of the source becomes a RunError."""
    number = 1
    try:
        for item in items:
            if length is not None and number >= length:
                raise DataError(
                    f"{request.source.text} yields more than {length:,} {what}s, its"
                    " length",
                    hint="correct __len__, or end the iterator",
                )
            yield item
            number += 1
    except PlacerError:
        raise
    except (Exception, SystemExit) as error:
        raise_reader_error(request, f"at {what} {number}", error)


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
