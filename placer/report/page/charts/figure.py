"""The frame of a chart: its size, title, labels of rows and legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placer.report.page.charts.axes import FONT, SMALL, label_at
from placer.report.page.svg import element, text
from placer.report.page.text_fit import shorten, text_width

WIDTH = 1100
"""The width of a chart in pixels."""
INDENT = "    "
MOST_LABEL = 190
"""The largest width of the labels of rows."""


def chart(label: str, height: float, *parts: str, width: float = WIDTH) -> str:
    """Write a chart as an SVG element.

    Args:
        label: the content as a sentence, for screen readers.
        height, width: the size in pixels.
        parts: the elements.
    """
    return element(
        "svg",
        *parts,
        class_="chart",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=round(width),
        height=round(height),
        role="img",
        aria_label=label,
    )


def label_width(labels: Iterable[str]) -> float:
    """Return the width of the column with the labels of rows, with its margin."""
    widths = (text_width(each, FONT) for each in labels)
    return min(max(widths, default=0.0), MOST_LABEL) + 12


def row_label(y: float, string: str) -> str:
    """Draw the label of a row; a long label has its full text as a title."""
    short = shorten(string, MOST_LABEL, FONT)
    if short == string:
        return label_at(0, y, string)
    return element("text", titled(string), text(short), class_="t", x=0, y=y)


def inner_label(y: float, string: str) -> str:
    """Draw the label of a row that belongs to the row above."""
    x = text_width(INDENT, FONT)
    short = shorten(string, MOST_LABEL - x, SMALL)
    title = "" if short == string else titled(string)
    return element("text", title, text(short), class_="t2", x=x, y=y)


def titled(string: str) -> str:
    """Write the title that a browser shows on hovering."""
    return element("title", text(string))


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    class_: str,
    title: str = "",
) -> str:
    """Draw a bar. A bar narrower than three pixels has no border."""
    kind = "piece" if width >= 3 else "piece thin"
    return element(
        "rect",
        titled(title) if title else "",
        class_=f"{kind} {class_}",
        x=float(x),
        y=float(y),
        width=max(float(width), 0.4),
        height=float(height),
    )


def text_in(x: float, y: float, width: float, strings: Sequence[str]) -> str:
    """Draw the first of several texts that fits into a box; nothing if none fits."""
    for string in strings:
        if string and text_width(string, SMALL) + 8 <= width:
            return label_at(x + width / 2, y, string, "t2 in", anchor="middle")
    return ""


def legend(
    entries: Iterable[tuple[str, str]], x: float, note: str = "", width: float = WIDTH
) -> tuple[str, float]:
    """Draw a legend at the top of a chart, in as many lines as needed.

    Args:
        entries: the class and the text of each entry.
        x: the left end.
        note: a text after the entries.
        width: the right end.

    Returns:
        The elements, and the bottom of the last line.
    """
    parts = []
    left, y = x, 12.0
    for class_, string in (*entries, ("", note)):
        before = 18 if class_ else 0
        needed = before + text_width(string, SMALL)
        if left > x and left + needed > width:
            left, y = x, y + 18
        if class_:
            swatch = f"piece {class_}"
            parts.append(
                element("rect", class_=swatch, x=left, y=y - 10, width=12, height=12)
            )
        if string:
            parts.append(label_at(left + before, y, string, "t2"))
        left += needed + 16
    return "".join(parts), y + 6
