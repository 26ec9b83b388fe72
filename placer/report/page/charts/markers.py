"""Dash patterns and markers, which distinguish runs without color."""

from __future__ import annotations

from typing import Final

from placer.report.page.charts.figure import titled
from placer.report.page.svg import element

DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "4 2", "1 2", "12 4", "6 2 2 2 2 2")
_SHAPES: Final = (
    "M-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0",
    "M-3.2,-3.2h6.4v6.4h-6.4z",
    "M0,-4l4,7h-8z",
    "M0,-4.4l4.4,4.4l-4.4,4.4l-4.4,-4.4z",
    "M0,4l4,-7h-8z",
    "M-4,-4l8,8M4,-4l-8,8",
    "M0,-4.5v9M-4.5,0h9",
    "M-4,-2h8v4h-8z",
)


def marker(number: int, x: float, y: float, title: str = "") -> str:
    """Draw the marker of a run.

    Args:
        number: the number of the run in its chart.
        x, y: the position in pixels.
        title: the text on hovering.
    """
    return element(
        "path",
        titled(title) if title else "",
        class_=f"dot run-{number}",
        d=_SHAPES[number % len(_SHAPES)],
        transform=f"translate({x:.1f},{y:.1f})",
    )
