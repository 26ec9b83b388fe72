"""Formats numbers for people."""

from __future__ import annotations

from collections.abc import Mapping

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def format_count(number: float) -> str:
    """Format a whole number with thousands separators.

    >>> count(65536)
    '65,536'
    """
    return f"{number:,.0f}"


def format_size(nbytes: float) -> str:
    """Format a number of bytes with a decimal unit, to three or four digits.

    >>> size(980), size(65536)
    ('980 bytes', '65.5 kB')
    """
    step = 0
    while nbytes >= 999.95 and step + 1 < len(_UNITS):
        nbytes, step = nbytes / 1000, step + 1
    return f"{nbytes:.0f} {_UNITS[0]}" if step == 0 else f"{nbytes:.1f} {_UNITS[step]}"


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Format metrics in one line, in their order.

    >>> measured({"loss": 0.123456, "accuracy": 0.5})
    'loss 0.1235  accuracy 0.5'
    """
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def plural(number: int, noun: str) -> str:
    """Format a number and the noun that it counts.

    >>> plural(1, "edge"), plural(1200, "edge")
    ('1 edge', '1,200 edges')
    """
    return (
        f"{format_count(number)} {noun}"
        if number == 1
        else f"{format_count(number)} {noun}s"
    )
