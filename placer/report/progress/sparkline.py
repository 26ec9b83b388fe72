"""Draws a metric of all steps as one short line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII: Final = "_.-=+*%#"
"""The levels for terminals whose encoding lacks `BLOCKS`."""
WIDTH: Final = 20
"""An even number. A line has fewer characters."""
_NOT_FINITE: Final = "?"


@dataclass(slots=True)
class Series:
    """The values of a metric in all steps, as fewer than `WIDTH` means of equally many steps."""

    _means: list[float] = field(default_factory=list)
    _every: int = 1
    _sum: float = 0.0
    _count: int = 0

    def add(self, value: float) -> None:
        """Add the value of the next step."""
        self._sum += value
        self._count += 1
        if self._count < self._every:
            return
        self._means.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self._means) == WIDTH:
            pairs = zip(self._means[::2], self._means[1::2], strict=True)
            self._means = [(a + b) / 2 for a, b in pairs]
            self._every *= 2

    def line(self, levels: str = BLOCKS) -> str:
        """Return the line; "" for fewer than two means."""
        return draw(self._means, levels) if len(self._means) > 1 else ""


def draw(values: Sequence[float], levels: str = BLOCKS) -> str:
    """Draw each value as one of `levels`, from the smallest to the largest value.

    >>> draw([0, 1, 2, 3, 7]), draw([3, 1, 0], ASCII), draw([1, math.nan, 1])
    ('▁▂▃▄█', '#-_', '▁?▁')
    """
    finite = [value for value in values if math.isfinite(value)]
    least, most = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(levels) - 1) / (most - least) if most > least else 0.0
    return "".join(
        levels[round((value - least) * scale)] if math.isfinite(value) else _NOT_FINITE
        for value in values
    )
