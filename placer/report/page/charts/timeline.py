"""Draws the timeline of all threads in the median step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from placer.report.numbers import format_ms, plural
from placer.report.page.charts.axes import Scale, label_at, line, time_axis
from placer.report.page.charts.figure import (
    INDENT,
    WIDTH,
    box,
    chart,
    inner_label,
    label_width,
    legend,
    row_label,
    text_in,
)
from placer.report.page.charts.slices import Drawn, merge_slices
from placer.report.page.svg import class_name, element
from placer.report.step.facts import Piece, SliceFacts, StepTime, ThreadRow

MOST_SLICES = 6000
"""The largest number of drawn slices, about 1 MB of a page."""
MOST_ROWS = 64
_DEEPEST = 3
_SLICE, _GAP = 15, 14


def timeline_chart(step_time: StepTime) -> str:
    """Draw the slices of each thread, inner slices below outer ones. A line below a row
    marks the longest chain, and thin lines are its messages."""
    rows = [row for row in step_time.rows if row.slices][:MOST_ROWS]
    if not rows or not step_time.seconds:
        return ""
    labels = list(_labels(rows))
    left = label_width(node or f"{INDENT}{thread}" for node, thread in labels)
    scale = Scale(0, step_time.seconds, left, WIDTH - 22)
    pixel = step_time.seconds / (scale.end - scale.start)
    merged = merge_slices([_shown(row) for row in rows], pixel, MOST_SLICES)
    note = (
        "lines below rows: work of the longest chain; lines between rows: its messages"
        if step_time.chain
        else ""
    )
    top, axis_y = legend((), left, note) if note else ("", 0.0)
    parts, y = [top], axis_y + 26
    lines: dict[tuple[str, str], float] = {}
    for row, (node, thread), slices in zip(rows, labels, merged, strict=True):
        depths = 1 + max(each.depth for each in slices)
        parts.append(row_label(y + 12, node) if node else inner_label(y + 12, thread))
        parts += _slices(slices, scale, y)
        lines[row.node, row.thread] = y + depths * _SLICE + 4
        y += depths * _SLICE + _GAP
    axis = time_axis(scale, axis_y + 16, y - 6)
    left_out = sum(1 for row in step_time.rows if row.slices) - len(rows)
    if left_out:
        text = f"{plural(left_out, 'more thread')} not drawn"
        parts.append(label_at(left, y + 8, text, "t2"))
        y += 20
    return chart(
        f"Timeline of step {step_time.step}, which takes {format_ms(step_time.seconds)},"
        f" with {plural(len(rows), 'thread')}.",
        y,
        axis,
        *parts,
        *_chain(step_time.chain, scale, lines),
    )


def _labels(rows: Sequence[ThreadRow]) -> Iterator[tuple[str, str]]:
    """Yield the label of each row, and its thread if the row above is of the same node."""
    threads = Counter(row.node for row in rows)
    above = ""
    for row in rows:
        several = threads[row.node] > 1
        label = f"{row.node} {row.thread}" if several else row.node
        yield "" if row.node == above else label, row.thread
        above = row.node


def _shown(row: ThreadRow) -> list[SliceFacts]:
    return [each for each in row.slices if each.depth <= _DEEPEST]


def _slices(slices: Iterable[Drawn], scale: Scale, y: float) -> Iterator[str]:
    for each in slices:
        x, width = scale(each.start), scale(each.end) - scale(each.start)
        top = y + each.depth * _SLICE
        class_ = class_name("cat", each.category)
        yield box(x, top, width, _SLICE - 1, class_, _title(each))
        time = format_ms(each.end - each.start)
        yield text_in(x, top + 11, width, [f"{each.name} {time}", each.name])


def _title(each: Drawn) -> str:
    at = f"at {format_ms(each.start)}"
    if each.count > 1:
        what = f"{plural(each.count, 'slice')}, mostly {each.category}"
        return f"{what}: {format_ms(each.busy)}, {at}"
    time = format_ms(each.end - each.start)
    return f"{each.name} ({each.category}): {time}, {at}"


def _chain(
    chain: Sequence[Piece],
    scale: Scale,
    lines: Mapping[tuple[str, str], float],
) -> Iterator[str]:
    """Yield the pieces of the longest chain: work as a thick line below its row, and a
    message as a thin line to the row of its receiver."""
    above: float | None = None
    for piece in chain:
        y = lines.get((piece.node, piece.thread))
        if y is None:
            above = None
            continue
        start, end = scale(piece.start), scale(piece.end)
        if above is not None and above != y:
            yield element(
                "path",
                class_="chain-message",
                d=f"M{start:.1f},{above:.1f}L{end:.1f},{y:.1f}",
            )
        if piece.category != "message":
            yield line(start, y, max(end, start + 0.5), y, "on-chain")
        above = y
