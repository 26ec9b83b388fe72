"""The number of rows of a `python:` source that yields them: its limits, and their errors."""

from __future__ import annotations

import inspect
import sys
from array import array
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any

from placer.errors import DataError
from placer.readers.arguments import ReadRequest
from placer.readers.column import dtype_of

MAX_ROWS = 1_000_000
"""The maximum number of rows of an iterable without a length, which may be endless."""


def length_of(yielded: Iterable[Any]) -> int | None:
    """Return the number of items of an iterable that declares it, and else None."""
    try:
        return len(yielded)  # type: ignore[arg-type]
    except (
        TypeError,
        NotImplementedError,
    ):  # also of `tf.data`, if a data set is repeated without end
        return None


def row_limit(request: ReadRequest, length: int | None) -> int:
    """Return the largest number of rows to read.

    They fit in the memory. Without a length, they are at most `MAX_ROWS`.
    """
    options = request.options
    most = MAX_ROWS if length is None else sys.maxsize
    if options.nbytes is None:
        return most
    sizes = [
        prod(c.shape) * dtype_of(c, request.source.text).itemsize
        for c in request.columns
    ]
    digests = array("I").itemsize * len(request.used) * options.with_digests
    return min(most, options.nbytes // max(1, sum(sizes) + digests))


def too_many_rows(
    request: ReadRequest, function: Callable[..., Any], limit: int
) -> DataError:
    """Return the error for a source with more than `limit` rows; see `row_limit`."""
    source, sequence = request.source.text, "return a sequence"
    if limit != MAX_ROWS:
        return DataError(
            f"{source} yields more than {limit:,} rows, the limit of the memory",
            hint=f"{sequence}, whose rows are read when steps need them, or write files"
            " and read them through a window",
        )
    return DataError(
        f"{source} has yielded {limit:,} rows, and may be endless",
        hint=f"{_line_of(request, function)}: end an endless iterator with"
        " itertools.islice (--steps does not end it); for more rows, return an"
        f" iterable with __len__ or a dict of arrays, {sequence}, or write files",
    )


def _line_of(request: ReadRequest, function: Callable[..., Any]) -> str:
    """Return the file and the line of the function of a source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return f"see {request.source.path.split(':')[0]}.py"
    return f"see {Path(code.co_filename).name}, line {code.co_firstlineno}"
