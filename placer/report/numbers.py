"""Formats numbers for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime


def format_count(number: float) -> str:
    """Format a whole number with thousands separators.

    >>> format_count(65536)
    '65,536'
    """
    return f"{number:,.0f}"


def format_size(nbytes: float) -> str:
    """Format a number of bytes with a decimal unit and three or four digits.

    >>> format_size(980), format_size(65536)
    ('980 bytes', '65.5 kB')
    """
    return _scale(nbytes, ("bytes", "kB", "MB", "GB", "TB"))


def format_flops(number: float) -> str:
    """Format a number of FLOPs with a decimal unit.

    >>> format_flops(980), format_flops(32784061)
    ('980 FLOPs', '32.8 MFLOPs')
    """
    return _scale(number, ("FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"))


def _scale(number: float, units: Sequence[str]) -> str:
    step = 0
    while number >= 999.95 and step + 1 < len(units):
        number, step = number / 1000, step + 1
    return f"{number:.1f} {units[step]}" if step else f"{number:.0f} {units[0]}"


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Format metrics in one line, in the given order.

    >>> format_metrics({"loss": 0.123456, "accuracy": 0.5})
    'loss 0.1235  accuracy 0.5'
    """
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def plural(number: int, noun: str, several: str | None = None) -> str:
    """Format a number and the noun that it counts; `several` is an irregular plural.

    >>> plural(1, "edge"), plural(1200, "edge"), plural(2, "batch", "batches")
    ('1 edge', '1,200 edges', '2 batches')
    """
    several = f"{noun}s" if several is None else several
    return f"{format_count(number)} {noun if number == 1 else several}"


def format_duration(seconds: float) -> str:
    """Format seconds as minutes and seconds, or with hours.

    >>> format_duration(7.6), format_duration(83), format_duration(3723)
    ('0:07', '1:23', '1:02:03')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_ms(seconds: float) -> str:
    """Format a time as milliseconds with three or more digits.

    >>> format_ms(0.0155), format_ms(0.1234), format_ms(0.00042), format_ms(0.0)
    ('15.5 ms', '123 ms', '0.42 ms', '0 ms')
    """
    ms = 1000 * seconds
    if not ms:
        return "0 ms"
    digits = 0 if ms >= 99.95 else 1 if ms >= 0.9995 else 2
    return f"{ms:,.{digits}f} ms"


def format_time(seconds: float) -> str:
    """Format seconds since 1970 as local date and time. Empty if the time is
    unknown.
    """
    if not seconds:
        return ""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def format_rate(per_second: float, noun: str) -> str:
    """Format a rate, or the duration of one item if it exceeds a second.

    >>> format_rate(1234.5, "step"), format_rate(12.34, "step"), format_rate(0.4, "step")
    ('1,234 steps/s', '12.3 steps/s', '2.5 s/step')
    """
    if per_second < 1:
        return f"{1 / per_second:,.1f} s/{noun}"
    digits = 1 if per_second < 100 else 0
    return f"{per_second:,.{digits}f} {noun}s/s"
