"""Draws the shares of a step that each node spends on computing, messages and waiting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from placer.report.numbers import plural
from placer.report.page.charts.axes import Scale, label_at, share_axis
from placer.report.page.charts.categories import categories_in
from placer.report.page.charts.figure import (
    WIDTH,
    box,
    chart,
    label_width,
    legend,
    row_label,
    text_in,
)
from placer.report.page.svg import class_name

MOST_ROWS = 64
_ROW, _BAR = 26, 18


def shares_chart(
    shares: Mapping[str, Mapping[str, float]], *, has_legend: bool = True
) -> str:
    """Draw a stacked bar per node.

    Args:
        shares: by node and category, a fraction of the recorded time.
        has_legend: False for a page that has the legend elsewhere.
    """
    if not shares:
        return ""
    nodes = list(shares)[:MOST_ROWS]
    left = label_width(nodes)
    scale = Scale(0, 1, left, WIDTH - 22)
    names = categories_in(name for node in nodes for name in shares[node])
    entries = [(class_name("cat", name), _word(name)) for name in names]
    top, axis_y = legend(entries, left) if has_legend else ("", 0.0)
    y = axis_y + 26
    axis = share_axis(scale, axis_y + 16, y + len(nodes) * _ROW - 4)
    parts = [top, axis]
    for node in nodes:
        parts.append(row_label(y + 13, node))
        parts += _bars(node, shares[node], names, scale, y)
        y += _ROW
    if len(nodes) < len(shares):
        rest = plural(len(shares) - len(nodes), "node")
        parts.append(label_at(left, y + 8, f"and {rest} more", "t2"))
        y += 20
    waits = ", ".join(
        f"{node} waits {100 * shares[node].get('wait', 0.0):.0f} %" for node in nodes
    )
    label = f"Shares of each node's time: {waits}."
    return chart(label, y, *parts)


def _bars(
    node: str, shares: Mapping[str, float], names: list[str], scale: Scale, y: float
) -> Iterator[str]:
    before = 0.0
    for name in names:
        share = shares.get(name, 0.0)
        if share <= 0:
            continue
        x, width = scale(before), scale(before + share) - scale(before)
        percent = f"{100 * share:.0f} %"
        title = f"{node}: {_word(name)} {percent}"
        yield box(x, y, width, _BAR, class_name("cat", name), title)
        yield text_in(x, y + 13, width, [f"{_word(name)} {percent}", percent])
        before += share


def _word(category: str) -> str:
    return "other" if category == "step" else category
