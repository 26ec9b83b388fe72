"""Scales and axes of charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10

from placer.report.numbers import format_count
from placer.report.page.svg import element, text
from placer.report.page.text_fit import text_width

SMALL = 11
"""The font size of secondary text, in pixels."""
FONT = 13
"""The font size of labels, in pixels."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low` to `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        if self.high == self.low:
            return self.start
        part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)


def nice_ticks(low: float, high: float, most: int = 6) -> tuple[float, ...]:
    """Return at most `most` round numbers between `low` and `high`, ascending.

    Their distance is 1, 2 or 5 times a power of ten.

    >>> nice_ticks(0, 85.7), nice_ticks(0.013, 0.492, most=5)
    ((0.0, 20.0, 40.0, 60.0, 80.0), (0.2, 0.4))
    """
    if high <= low:
        return (low,)
    step = _nice_step((high - low) / max(1, most - 1))
    while (count := _last(high, step) - _first(low, step) + 1) > most:
        step = _nice_step(step * 1.5)
    first = _first(low, step)
    digits = max(0, -floor(log10(step)))
    return tuple(round((first + i) * step, digits) for i in range(count))


def _first(low: float, step: float) -> int:
    return ceil(low / step - 1e-9)


def _last(high: float, step: float) -> int:
    return floor(high / step + 1e-9)


def _nice_step(least: float) -> float:
    power = 10.0 ** floor(log10(least))
    return next(
        (m * power for m in (1, 2, 5) if m * power >= least * 0.999), 10 * power
    )


def format_ticks(ticks: Sequence[float]) -> tuple[str, ...]:
    """Format ticks with equally many decimals, as few as possible.

    >>> format_ticks((0.0, 0.05, 0.1)), format_ticks((0.0, 2000.0)), format_ticks((1e-7,))
    (('0', '0.05', '0.10'), ('0', '2,000'), ('1e-07',))
    """
    largest = max(map(abs, ticks), default=0.0)
    step = min((b - a for a, b in pairwise(ticks)), default=largest) or 1.0
    if largest and not 1e-4 <= largest < 1e9:
        digits = 1 + max(0, round(log10(largest / step)))
        return tuple(f"{tick:.{digits}g}" if tick else "0" for tick in ticks)
    digits = max(0, -floor(log10(step) + 1e-9))
    return tuple(f"{tick:,.{digits}f}" if tick else "0" for tick in ticks)


def time_axis(scale: Scale, top: float, bottom: float) -> str:
    """Draw a time axis above a chart, with a grid line per tick.

    Args:
        scale: maps seconds to pixels.
        top: the baseline of the numbers.
        bottom: the end of the grid lines.
    """
    unit, factor = ("ms", 1000.0) if scale.high < 10 else ("s", 1.0)
    ticks = nice_ticks(factor * scale.low, factor * scale.high, most=9)
    labels = [f"{each} {unit}" for each in format_ticks(ticks)]
    return ticks_above(scale, [tick / factor for tick in ticks], labels, top, bottom)


def share_axis(scale: Scale, top: float, bottom: float) -> str:
    """Draw an axis of percentages above a chart; `scale` maps fractions to pixels."""
    ticks = (0.0, 0.25, 0.5, 0.75, 1.0)
    labels = [f"{100 * tick:.0f} %" for tick in ticks]
    return ticks_above(scale, ticks, labels, top, bottom)


def ticks_above(
    scale: Scale,
    ticks: Sequence[float],
    labels: Sequence[str],
    top: float,
    bottom: float,
) -> str:
    """Draw grid lines with their labels above. Labels that overlap are left out."""
    parts = []
    end = float("-inf")
    for tick, label in zip(ticks, labels, strict=True):
        x = scale(tick)
        parts.append(line(x, top + 5, x, bottom, "grid"))
        half = text_width(label, SMALL) / 2
        if x - half > end + 4:
            parts.append(label_at(x, top, label, "t2", anchor="middle"))
            end = x + half
    return "".join(parts)


def step_ticks(low: int, high: int, most: int = 6) -> tuple[tuple[int, str], ...]:
    """Return the ticks of an axis of steps with their labels. Steps are whole numbers."""
    ticks = dict.fromkeys(round(each) for each in nice_ticks(low, high, most))
    return tuple((each, format_count(each)) for each in ticks)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """Draw a straight line."""
    return element("line", class_=class_, x1=x1, y1=y1, x2=x2, y2=y2)


def label_at(
    x: float, y: float, string: str, class_: str = "t", anchor: str | None = None
) -> str:
    """Draw a text with its baseline at `y`."""
    return element("text", text(string), class_=class_, x=x, y=y, text_anchor=anchor)
