"""Columns of dates and times: text in ISO 8601 format, dates and timestamps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from placer.errors import DataError
from placer.readers.cell_numbers import quote
from placer.readers.times import DAY, EPOCH, parse_time, time_of_number

Whole = npt.NDArray[np.int64]
ISO_HINT = "write it as 2024-05-01, 2024-05-01T12:30 or 2024-05-01T12:30:15.25+02:00"
_FIRST_DAY = date.min.toordinal() - EPOCH


@dataclass(frozen=True, slots=True)
class Times:
    """Times of some rows, in UTC, int64[rows] each.

    Attributes:
        days: the days since 1970-01-01.
        nanoseconds: the nanoseconds of the day.
        missing: a mask of missing times, bool[rows]; their numbers have no meaning.
    """

    days: Whole
    nanoseconds: Whole
    missing: npt.NDArray[np.bool_]


def fill_times(
    days: Whole, nanoseconds: Whole, mask: pa.BooleanArray, missing: float | None
) -> Times:
    """Return times with a mask of missing ones.

    With `missing`, they are replaced by the time `missing` days after 1970-01-01.
    """
    is_missing = mask.to_numpy(zero_copy_only=False)
    if missing is None or not is_missing.any():
        return Times(days, nanoseconds, is_missing)
    day, rest = time_of_number(missing)
    return Times(
        np.where(is_missing, day, days),
        np.where(is_missing, rest, nanoseconds),
        np.zeros(len(days), np.bool_),
    )


def parse_times(
    array: pa.StringArray, where: Callable[[int], str]
) -> tuple[Whole, Whole]:
    """Return the days and the nanoseconds of texts; raise DataError for other texts.

    `where(i)` is the position of row i.
    """
    if (found := _cast(array)) is not None:
        return found
    times = np.empty((2, len(array)), np.int64)
    for i, text in enumerate(array.to_pylist()):
        try:
            times[:, i] = parse_time(text)
        except ValueError as error:
            message = f"{where(i)}: {quote(text)} is not a date or a time"
            raise DataError(message, hint=ISO_HINT) from error
    return times[0], times[1]


def _cast(array: pa.StringArray) -> tuple[Whole, Whole] | None:
    """Parse all texts at once; None if a text may be invalid or needs nanoseconds."""
    for kind in (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")):
        with suppress(pa.ArrowInvalid):
            days, nanoseconds = split_times(array.cast(kind))
            # `parse_time` rejects the year 0.
            return None if (days < _FIRST_DAY).any() else (days, nanoseconds)
    return None


def split_times(array: pa.Array) -> tuple[Whole, Whole]:
    """Return the days and the nanoseconds of dates or timestamps; a null is 0."""
    kind = array.type
    if pa.types.is_date32(kind):
        days = array.cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64)
        return days, np.zeros_like(days)
    ticks = array.cast(pa.int64()).fill_null(0).to_numpy()
    unit = "ms" if pa.types.is_date64(kind) else kind.unit
    per_day = DAY // _NANOSECONDS[unit]
    days = ticks // per_day
    return days, (ticks - days * per_day) * _NANOSECONDS[unit]


_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
