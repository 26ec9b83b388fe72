"""Hatches, which distinguish bars without color."""

from __future__ import annotations

from collections.abc import Mapping

from placer.report.page.svg import element

_SIZE = 6
_PATHS = {"/": "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2", "-": "M0,3 h6", "|": "M3,0 v6"}


def hatches(chart: str, styles: Mapping[str, str]) -> str:
    """Define the hatches of a chart.

    Args:
        chart: the name of the chart, which makes the ids unique in a page.
        styles: by class, the direction of the lines: "/", "-" or "|".
    """
    return element(
        "defs",
        *(
            element(
                "pattern",
                element("path", class_=f"hatch {class_}", d=_PATHS[style]),
                id=f"{chart}-{class_}",
                width=_SIZE,
                height=_SIZE,
                patternUnits="userSpaceOnUse",
            )
            for class_, style in styles.items()
        ),
    )


def hatched(
    chart: str, class_: str, x: float, y: float, width: float, height: float
) -> str:
    """Draw a hatch over a bar."""
    return element(
        "rect",
        x=float(x),
        y=float(y),
        width=float(width),
        height=float(height),
        fill=f"url(#{chart}-{class_})",
        pointer_events="none",
    )
