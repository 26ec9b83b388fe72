"""The largest number of rows of a `python:` source that fit in memory."""

from __future__ import annotations

from array import array
from math import prod

from placer.errors import DataError
from placer.readers.arguments import ReadRequest
from placer.readers.column import dtype_of


def row_limit(request: ReadRequest, most: int) -> int:
    """Return the largest number of rows to read: `most`, or fewer if memory is short."""
    options = request.options
    if options.nbytes is None:
        return most
    sizes = [
        prod(c.shape) * dtype_of(c, request.source.text).itemsize
        for c in request.columns
    ]
    digests = array("I").itemsize * len(request.used) * options.with_digests
    return min(most, options.nbytes // max(1, sum(sizes) + digests))


def too_many_rows(request: ReadRequest, limit: int, most: int, hint: str) -> DataError:
    """Return the error for a source with more than `limit` rows; see `row_limit`."""
    reason = "" if limit == most else ", the limit of the memory"
    return DataError(
        f"{request.source.text} yields more than {limit:,} rows{reason}", hint=hint
    )
