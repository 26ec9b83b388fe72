"""Averages over neighboring steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

Point = tuple[float, float]
_FEWEST = 40
"""A curve with fewer points is not smoothed."""
_PARTS = 40
"""The average covers one of this many parts of a curve."""
_KEPT = 300


def smooth(points: Sequence[Point]) -> tuple[Point, ...] | None:
    """Return the moving average of a curve; None for a curve with few points.

    The window is centered, and shorter at both ends.
    """
    if len(points) < _FEWEST:
        return None
    reach = max(1, len(points) // _PARTS // 2)
    sums = list(accumulate((value for _, value in points), initial=0.0))
    every = max(1, len(points) // _KEPT)
    chosen = [*range(0, len(points) - 1, every), len(points) - 1]
    averages = []
    for i in chosen:
        around = min(reach, i, len(points) - 1 - i)
        total = sums[i + around + 1] - sums[i - around]
        averages.append((points[i][0], total / (2 * around + 1)))
    return tuple(averages)
