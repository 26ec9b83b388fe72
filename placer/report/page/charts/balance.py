"""Draws how evenly nodes store the parameters."""

from __future__ import annotations

from collections.abc import Sequence

from placer.report.numbers import format_size, plural
from placer.report.page.charts.axes import SMALL, Scale, label_at, line
from placer.report.page.charts.figure import WIDTH, box, chart, label_width, row_label
from placer.report.page.facts import TableRow
from placer.report.page.text_fit import text_width
from placer.system.listed import list_names

MOST_ROWS = 32
_ROW, _BAR = 28, 18
_NAMED = 12


def balance_chart(rows: Sequence[TableRow]) -> str:
    """Draw a bar per node with the bytes of its parameters, and a mark at the mean. The
    fullest nodes are drawn if there are many."""
    if not rows:
        return ""
    drawn = sorted(rows, key=lambda row: -row.nbytes)[:MOST_ROWS]
    drawn = [row for row in rows if row in drawn]
    texts = [_numbers(row) for row in drawn]
    left = label_width(row.node for row in drawn)
    right = WIDTH - max(text_width(each, SMALL) for each in texts) - 16
    means = _means(rows)
    most = max(row.nbytes for row in drawn)
    scale = Scale(0, max(most, 1), left, right)
    parts, y = [], 22.0
    for row, text in zip(drawn, texts, strict=True):
        width = scale(row.nbytes) - left
        title = f"{row.node}: {list_names(row.parameters, _NAMED)}"
        x = scale(means.get(_kind(row), 0.0))
        parts += [
            row_label(y + 13, row.node),
            box(left, y, width, _BAR, "memory-parameters", title),
            line(x, y - 4, x, y + _BAR + 4, "mean"),
            label_at(max(left + width, x) + 8, y + 13, text, "t2"),
        ]
        y += _ROW
    if len(rows) > len(drawn):
        rest = plural(len(rows) - len(drawn), "row")
        parts.append(label_at(left, y + 8, f"{rest} with fewer bytes not drawn", "t2"))
        y += 20
    mean = label_at(left, 11, "dashed line: mean of the node kind", "t2")
    label = "; ".join(f"{r.node} {t}" for r, t in zip(drawn, texts, strict=True))
    return chart(f"Parameters on each node: {label}.", y, mean, *parts)


def _means(rows: Sequence[TableRow]) -> dict[str, float]:
    """Return the mean of each node kind."""
    return {_kind(row): row.nbytes / row.share for row in rows if row.share}


def _kind(row: TableRow) -> str:
    return row.node.partition(":")[0]


def _numbers(row: TableRow) -> str:
    blocks = plural(len(row.parameters), "block")
    return f"{format_size(row.nbytes)} in {blocks}, {row.share:.2f} x mean"
