"""Functions that prepare.py of an exported model contains: features of columns.

They compute the features bit by bit as in training, for rows as a service receives
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from placer.compiler.serving.prepare_functions import (
    as_cell,
    cell_number,
    check_names,
    is_missing,
    whole,
)
from placer.readers.scalars import is_absent
from placer.readers.times import DAY, time_of, time_of_number

BITS = 2**64 - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
"""The primes of XXH64."""


def xxh64(data: bytes, seed: int) -> int:
    """Return the XXH64 hash of bytes."""

    def rotate(x: int, bits: int) -> int:
        x &= BITS
        return (x << bits | x >> (64 - bits)) & BITS

    def mix(accumulator: int, word: int) -> int:
        return rotate(accumulator + word * P2, 31) * P1 & BITS

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little")

    size, at = len(data), 0
    key = seed + P5
    if size >= 32:
        lanes = [seed + P1 + P2, seed + P2, seed, seed - P1]
        while at + 32 <= size:
            lanes = [mix(lane, number(at + 8 * i, 8)) for i, lane in enumerate(lanes)]
            at += 32
        key = sum(map(rotate, lanes, (1, 7, 12, 18)))
        for lane in lanes:
            key = (key ^ mix(0, lane)) * P1 + P4 & BITS
    key = key + size & BITS
    while at + 8 <= size:
        key, at = rotate(key ^ mix(0, number(at, 8)), 27) * P1 + P4 & BITS, at + 8
    if at + 4 <= size:
        key, at = rotate(key ^ (number(at, 4) * P1 & BITS), 23) * P2 + P3 & BITS, at + 4
    for byte in data[at:]:
        key = rotate(key ^ (byte * P5 & BITS), 11) * P1 & BITS
    key = (key ^ key >> 33) * P2 & BITS
    key = (key ^ key >> 29) * P3 & BITS
    return key ^ key >> 32


def hash_texts(
    columns: Mapping[str, Any],
    name: str,
    seed: int,
    *,
    empty_is_missing: bool = False,
    markers: Sequence[str | float] = (),
) -> np.ndarray:
    """Return the keys of a column of texts, uint64[rows].

    Args:
        columns: the columns by name.
        name: the column.
        seed: the seed of its field, which is also the key of a missing text (None, NaN
            or NA).
        empty_is_missing: an empty text is missing, as in a CSV file. Booleans are then
            refused, because a CSV file can spell them in several ways.
        markers: more texts that are missing.

    Raises:
        ValueError: if the column is missing, or a value is not a text.
    """
    check_names(columns, [name])
    keys = []
    for row, cell in enumerate(columns[name]):
        text = None if is_absent(cell) else cell
        if isinstance(text, bool | np.bool_) and not empty_is_missing:
            text = str(text).lower()
        if not isinstance(text, str | bytes | None):
            raise ValueError(f"column '{name}', row {row}: {cell!r} is not a text")
        try:
            data = (text.encode() if isinstance(text, str) else text or b"").strip()
            is_marked = bool(markers) and data.decode() in markers
        except UnicodeError as error:
            raise ValueError(f"column '{name}', row {row}: {error}") from None
        is_empty = text is None or (empty_is_missing and not data) or is_marked
        keys.append(seed if is_empty else xxh64(data, seed))
    return np.array(keys, np.uint64)


def hash_integers(
    columns: Mapping[str, Any],
    name: str,
    seed: int,
    missing: float | None = None,
    markers: Sequence[str | float] = (),
) -> np.ndarray:
    """Return the keys of a column of whole numbers, uint64[rows].

    Args:
        columns: the columns by name.
        name: the column.
        seed: the seed of its field, which is also the key of a missing number.
        missing: the number to use for a missing one, if given.
        markers: more texts and numbers that are missing.

    Raises:
        ValueError: if the column is missing, or a value is not a 64-bit whole number.
    """
    check_names(columns, [name])
    keys = []
    for row, cell in enumerate(columns[name]):
        try:
            number = whole_number(cell, missing, markers)
        except (TypeError, ValueError) as error:
            raise ValueError(f"column '{name}', row {row}: {error}") from None
        keys.append(seed if number is None else xxh64(as_bytes([number]), seed))
    return np.array(keys, np.uint64)


def whole_number(
    cell: Any, missing: float | None, markers: Sequence[str | float] = ()
) -> int | None:
    """Return the whole number in a cell, a text or a number; None if it is missing."""
    value = as_cell(cell)
    if is_missing(cell, markers):
        value = missing
    if value is None:
        return None
    if isinstance(value, str):
        value = whole(value)
    # Larger floats are whole, but the original number is unknown.
    largest = {float: 2**53, Decimal: 2**64}.get(type(value))
    if largest is not None and -largest <= value <= largest and value == int(value):
        value = int(value)
    if not isinstance(value, int):
        raise ValueError(f"{cell!r} is not a whole number")
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"{value} does not fit in 64 bits")
    return int(value)


def hash_numbers(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Return the keys of whole numbers, such as numbers of buckets, uint64[rows]."""
    return np.array([xxh64(as_bytes([int(n)]), seed) for n in numbers], np.uint64)


def cross_keys(parts: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """Return the keys of combinations, from the keys of their parts, uint64[rows]."""
    if len({len(part) for part in parts}) > 1:
        raise ValueError("the columns of a cross have different numbers of rows")
    rows = zip(*(part.tolist() for part in parts), strict=True)
    return np.array([xxh64(as_bytes(row), seed) for row in rows], np.uint64)


def as_bytes(numbers: Sequence[int]) -> bytes:
    """Return each whole number as 8 little-endian bytes."""
    return b"".join((number & BITS).to_bytes(8, "little") for number in numbers)


def in_bins(keys: np.ndarray, bins: int) -> np.ndarray:
    """Return the remainders of keys, int64[rows]."""
    return (keys % np.uint64(bins)).astype(np.int64)


def with_keys(
    columns: Mapping[str, Any], keys: Mapping[Any, np.ndarray], dtype: str
) -> dict[str, Any]:
    """Return the columns with `keys` reinterpreted as int64 or uint64."""
    views = {
        name: key.view(dtype) for name, key in keys.items() if columns.get(name) is key
    }
    return {**columns, **views}


def bucket_numbers(
    columns: Mapping[str, Any],
    name: str,
    boundaries: Sequence[float],
    missing: float | None = None,
    markers: Sequence[str | float] = (),
) -> np.ndarray:
    """Return the buckets of a column of numbers, int64[rows].

    A bucket is the number of boundaries that are at most the number. A missing number
    has the number of boundaries plus one.
    """
    numbers = read_numbers(columns, name, missing, markers)
    buckets = np.searchsorted(np.array(boundaries), numbers, side="right")
    return np.where(np.isnan(numbers), len(boundaries) + 1, buckets).astype(np.int64)


def log1p_numbers(
    columns: Mapping[str, Any],
    name: str,
    missing: float | None = None,
    markers: Sequence[str | float] = (),
) -> np.ndarray:
    """Return ln(1 + x) of a column of numbers, float64[rows]."""
    numbers = present_numbers(columns, name, missing, markers)
    if (numbers <= -1).any():
        row = int(np.argmax(numbers <= -1))
        raise ValueError(f"column '{name}', row {row}: log1p of {numbers[row]:g}")
    return np.asarray(np.log1p(numbers))


def standardize_numbers(
    columns: Mapping[str, Any],
    name: str,
    mean: float,
    std: float,
    missing: float | None = None,
    markers: Sequence[str | float] = (),
) -> np.ndarray:
    """Return (x - mean) / std of a column of numbers, float64[rows]."""
    numbers = present_numbers(columns, name, missing, markers)
    with np.errstate(over="ignore"):
        values: np.ndarray = (numbers - mean) / std
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise ValueError(f"column '{name}', row {row}: {numbers[row]:g} is too large")
    return values


def present_numbers(
    columns: Mapping[str, Any],
    name: str,
    missing: float | None,
    markers: Sequence[str | float],
) -> np.ndarray:
    """Return a column of numbers, float64[rows]; raise ValueError if one is missing."""
    numbers = read_numbers(columns, name, missing, markers)
    if np.isnan(numbers).any():
        row = int(np.argmax(np.isnan(numbers)))
        raise ValueError(f"column '{name}', row {row}: the value is missing")
    return numbers


def read_numbers(
    columns: Mapping[str, Any],
    name: str,
    missing: float | None,
    markers: Sequence[str | float],
) -> np.ndarray:
    """Return a column of finite numbers, float64[rows], NaN for a missing one.

    Args:
        columns: the columns by name.
        name: the column.
        missing: the number to use for a missing one, if given.
        markers: more texts and numbers that are missing.

    Raises:
        ValueError: if the column is missing, or a cell is not a finite number.
    """
    check_names(columns, [name])
    filled = float("nan") if missing is None else missing
    numbers = []
    for row, cell in enumerate(columns[name]):
        try:
            number = float(cell_number(cell, filled, "float64", markers))
            if number in (float("inf"), float("-inf")):
                raise ValueError(f"{number} is not a finite number")
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"column '{name}', row {row}: {error}") from None
        numbers.append(number)
    return np.array(numbers, np.float64)


def day_numbers(
    columns: Mapping[str, Any],
    name: str,
    first: int = 0,
    missing: float | None = None,
    markers: Sequence[str | float] = (),
) -> np.ndarray:
    """Return the days from a first day to the times of a column, float64[rows].

    `first` is in days since 1970-01-01. Raises ValueError if a time is missing.
    """
    numbers = []
    for row, time in enumerate(read_times(columns, name, missing, markers)):
        if time is None:
            raise ValueError(f"column '{name}', row {row}: the date is missing")
        numbers.append((time[0] - first) + time[1] / DAY)
    return np.array(numbers, np.float64)


def hour_numbers(
    columns: Mapping[str, Any],
    name: str,
    missing: float | None = None,
    markers: Sequence[str | float] = (),
) -> np.ndarray:
    """Return the hours of times, 0 to 23, or 24 for a missing time, int64[rows]."""
    times = read_times(columns, name, missing, markers)
    return np.array([24 if t is None else t[1] * 24 // DAY for t in times], np.int64)


def weekday_numbers(
    columns: Mapping[str, Any],
    name: str,
    missing: float | None = None,
    markers: Sequence[str | float] = (),
) -> np.ndarray:
    """Return weekdays, Monday 0 to Sunday 6, or 7 for a missing time, int64[rows]."""
    times = read_times(columns, name, missing, markers)
    # Day 0 was a Thursday.
    return np.array([7 if t is None else (t[0] + 3) % 7 for t in times], np.int64)


def read_times(
    columns: Mapping[str, Any],
    name: str,
    missing: float | None,
    markers: Sequence[str | float],
) -> list[tuple[int, int] | None]:
    """Return the times of a column, None for a missing one.

    A time is the day since 1970-01-01 and the nanoseconds of the day, in UTC.

    Args:
        columns: the columns by name; values are texts, dates, datetimes or datetime64s.
        name: the column.
        missing: the day to use for a missing time, counted from 1970-01-01, if given.
        markers: more texts that are missing.

    Raises:
        ValueError: if the column is missing, or a value is neither a date nor a time.
    """
    check_names(columns, [name])
    filled = None if missing is None else time_of_number(missing)
    times = []
    for row, cell in enumerate(columns[name]):
        try:
            is_filled = is_missing(cell, markers)
            times.append(filled if is_filled else time_of(as_cell(cell)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"column '{name}', row {row}: {error}") from None
    return times


NUMBERS = {
    "buckets": bucket_numbers,
    "log1p": log1p_numbers,
    "standardize": standardize_numbers,
    "days": day_numbers,
    "hour": hour_numbers,
    "weekday": weekday_numbers,
}
"""The function of each kind of features except keys.

It takes the columns, the name of a column, the feature's `arguments`, and the missing
values of the column.
"""
