"""Numbers as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def count(number: float) -> str:
    """A whole number with its thousands apart.

    >>> count(65536)
    '65,536'
    """
    return f"{number:,.0f}"


def size(nbytes: float) -> str:
    """Bytes with a decimal unit, to three or four digits.

    >>> size(980), size(65536)
    ('980 bytes', '65.5 kB')
    """
    step = 0
    while nbytes >= 999.95 and step + 1 < len(_UNITS):
        nbytes, step = nbytes / 1000, step + 1
    return f"{nbytes:.0f} {_UNITS[0]}" if step == 0 else f"{nbytes:.1f} {_UNITS[step]}"


def measured(metrics: Mapping[str, float]) -> str:
    """Metrics in their order.

    >>> measured({"loss": 0.123456, "accuracy": 0.5})
    'loss 0.1235  accuracy 0.5'
    """
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def plural(number: int, noun: str) -> str:
    """A number and what it counts.

    >>> plural(1, "edge"), plural(1200, "edge")
    ('1 edge', '1,200 edges')
    """
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"
