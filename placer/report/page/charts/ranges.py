"""Finds the range of values that a chart of curves shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from placer.report.numbers import plural

Point = tuple[float, float]
_FIRST, _SPIKE = 0.1, 3.0
"""The first points, as a part of the x axis, are cut off if the range of all values is this
many times the range of the other values."""


def shown_range(
    runs: Mapping[str, Sequence[Point]], best: str | None = None
) -> tuple[float, float, str]:
    """Return the range of the y axis, and a note about the values outside it.

    Args:
        runs: the points (x, y) of each run.
        best: the best run, which is always inside.
    """
    outliers = _outliers(runs, best)
    points = [each for run in runs if run not in outliers for each in runs[run]]
    low, high = _extent(points)
    later_low, later_high = _extent(later_points(points))
    cut = outliers if len(outliers) < 2 else [plural(len(outliers), "run")]
    if high - low > _SPIKE * (later_high - later_low) > 0:
        is_above = high - later_high > later_low - low
        outside = f"up to {high:.3g}" if is_above else f"from {low:.3g}"
        cut.append(f"first steps {outside}")
        low, high = later_low, later_high
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    bottom = low - margin
    bottom = max(0.0, bottom) if low >= 0 else bottom
    return bottom, high + margin, f"cut off: {', '.join(cut)}" if cut else ""


def later_points(points: Sequence[Point]) -> list[Point]:
    """Return the points without the first part of the x axis."""
    first, last = _extent([(y, x) for x, y in points])
    begin = first + (last - first) * _FIRST
    return [point for point in points if point[0] >= begin]


def _outliers(runs: Mapping[str, Sequence[Point]], best: str | None) -> list[str]:
    """Return the runs whose later values are far from all values of the other runs.

    The values of a diverged run are far from even the first values of the other runs. At
    least half of the runs stay.
    """
    typical = {
        run: median(y for _, y in later_points(points)) for run, points in runs.items()
    }
    center = typical[best] if best in typical else median(typical.values())
    order = sorted(typical, key=lambda run: abs(typical[run] - center))
    kept = (len(order) + 1) // 2
    low, high = _extent([each for run in order[:kept] for each in runs[run]])
    for run in order[kept:]:
        if 2 * low - high <= typical[run] <= 2 * high - low:
            kept += 1
            own_low, own_high = _extent(runs[run])
            low, high = min(low, own_low), max(high, own_high)
        else:
            break
    return [run for run in runs if run in order[kept:]]


def _extent(points: Sequence[Point]) -> tuple[float, float]:
    values = [y for _, y in points]
    return min(values), max(values)
