"""Formats numbers for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def format_count(number: float) -> str:
    """Format a whole number with thousands separators.

    >>> format_count(65536)
    '65,536'
    """
    return f"{number:,.0f}"


def format_size(nbytes: float) -> str:
    """Format a number of bytes with a decimal unit, to three or four digits.

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
    """Format metrics in one line, in their order.

    >>> format_metrics({"loss": 0.123456, "accuracy": 0.5})
    'loss 0.1235  accuracy 0.5'
    """
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def plural(number: int, noun: str) -> str:
    """Format a number and the noun that it counts.

    >>> plural(1, "edge"), plural(1200, "edge")
    ('1 edge', '1,200 edges')
    """
    return f"{format_count(number)} {noun}{'' if number == 1 else 's'}"
