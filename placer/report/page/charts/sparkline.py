"""Draws a small curve without axes, for a line of text."""

from __future__ import annotations

from collections.abc import Sequence

from placer.report.page.charts.axes import Scale
from placer.report.page.charts.figure import chart
from placer.report.page.curves import decimate
from placer.report.page.svg import element


def sparkline(
    values: Sequence[float], label: str, *, width: float = 96, height: float = 20
) -> str:
    """Draw values from left to right, with a dot at the last one; empty without values.

    Args:
        values: finite numbers.
        label: the name of the values, for screen readers.
        width, height: the size in pixels.
    """
    if not values:
        return ""
    points = decimate(list(enumerate(values)), most=round(2 * width))
    x = Scale(0, max(len(values) - 1, 1), 3, width - 4)
    low, high = min(values), max(values)
    y = Scale(low, high, height - 4, 4)
    flat = height / 2
    corners = [(x(i), y(value) if high > low else flat) for i, value in points]
    path = "L".join(f"{a:.1f},{b:.1f}" for a, b in corners)
    end_x, end_y = corners[-1]
    return chart(
        f"{label}: from {values[0]:.4g} to {values[-1]:.4g}",
        height,
        element("path", class_="smooth run-0", d=f"M{path}"),
        element("circle", class_="dot run-0", cx=end_x, cy=end_y, r=2.5),
        width=width,
    )
