"""Dates and times as a day and a time of day, in UTC.

`prepare.py` of an exported model has copies of these functions.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np

SECOND = 10**9
"""The nanoseconds of a second."""
DAY = 86_400 * SECOND
"""The nanoseconds of a day."""
EPOCH = date(1970, 1, 1).toordinal()
"""The ordinal of day 0."""

ISO_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[T ]([0-9]{2})(?::([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?)?"
    r"(?:Z|([+-])([0-9]{2}):?([0-9]{2})?)?)?"
)
"""A date, optionally with a time of day and a zone: `Z`, `+02:00`, `+0200` or `+02`."""


def parse_time(text: str) -> tuple[int, int]:
    """Return the time in a text: the day since 1970-01-01, and its nanoseconds.

    The text is in ISO 8601 format: `2024-05-01`, `2024-05-01T12:30`, `2024-05-01
    12:30:15.25+02:00`. A time with a zone is converted to UTC.

    Raises ValueError if the text is not a date or a time.
    """
    match = ISO_TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a date like 2024-05-01 or 2024-05-01T12:30")
    day, *clock, fraction, sign, zone_hours, zone_minutes = match.groups()
    hours, minutes, seconds, ahead, ahead_minutes = (
        int(each or 0) for each in (*clock, zone_hours, zone_minutes)
    )
    try:
        days = date.fromisoformat(day).toordinal() - EPOCH
    except ValueError as error:
        raise ValueError(f"{text!r} is not a date: {error}") from None
    if hours > 23 or max(minutes, seconds, ahead_minutes) > 59 or ahead > 23:
        raise ValueError(f"{text!r} is not a time")
    offset = (ahead * 60 + ahead_minutes) * (-60 if sign == "-" else 60)
    nanoseconds = ((hours * 60 + minutes) * 60 + seconds - offset) * SECOND
    nanoseconds += int((fraction or "").ljust(9, "0"))
    return days + nanoseconds // DAY, nanoseconds % DAY


def time_of(value: Any) -> tuple[int, int]:
    """Return the time of a Python value, as `parse_time` does.

    The value is a text, a date, a datetime, a pandas timestamp or a datetime64. A
    datetime with a zone is converted to UTC.

    Raises ValueError for any other value.
    """
    if isinstance(value, str):
        return parse_time(value.strip())
    if isinstance(value, np.datetime64):
        day = value.astype("datetime64[D]")
        return int(day.astype(np.int64)), int((value - day) / np.timedelta64(1, "ns"))
    if not isinstance(value, date):
        raise ValueError(f"{value!r} is not a date or a time")
    nanoseconds = 0
    if isinstance(value, datetime):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        nanoseconds = seconds * SECOND + value.microsecond * 1000
        nanoseconds += getattr(value, "nanosecond", 0)  # of pandas
        offset = value.utcoffset() or timedelta()
        nanoseconds -= offset // timedelta(microseconds=1) * 1000
    days = value.toordinal() - EPOCH + nanoseconds // DAY
    return days, nanoseconds % DAY


def time_of_number(days: float) -> tuple[int, int]:
    """Convert a number of days since 1970-01-01 to a time."""
    whole = int(days // 1)
    return whole, int((days - whole) * DAY)
