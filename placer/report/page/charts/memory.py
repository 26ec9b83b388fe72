"""Draws the memory of each process and its limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.report.numbers import format_size
from placer.report.page.charts.axes import SMALL, Scale, label_at, line
from placer.report.page.charts.figure import (
    WIDTH,
    box,
    chart,
    label_width,
    legend,
    row_label,
    text_in,
)
from placer.report.page.charts.patterns import hatched, hatches
from placer.report.page.facts import MemoryRow
from placer.report.page.text_fit import text_width

_KINDS = {
    "memory-parameters": "parameters",
    "memory-slots": "optimizer slots, copies and gradient sums",
    "memory-activations": "activations",
}
_HATCHED = {"memory-slots": "/", "memory-activations": "-"}
_ROW, _DEVICE = 34, 20
_BAR, _THIN = 20, 10


def memory_chart(rows: Sequence[MemoryRow]) -> str:
    """Draw a bar per process: parameters, slots and activations, with the limit as a mark.
    A process with several devices has a bar for each, with its own limit."""
    if not rows:
        return ""
    texts = [_numbers(row) for row in rows]
    notes = [_peak(*each) for row in rows for each in _devices(row)]
    numbers = max(text_width(each, SMALL) for each in (*texts, *notes)) + 16
    left = label_width(row.processes for row in rows)
    peaks = [peak for row in rows for _, peak, _ in _devices(row)]
    largest = max(*map(_total, rows), *peaks, 1)
    limits = [limit for row in rows for _, limit in row.devices.values()]
    # A limit far above the bars would make them invisible.
    shown = [limit for limit in limits if limit <= 3 * largest]
    scale = Scale(0, max(largest, *shown, 0), left, WIDTH - numbers)
    top, y = legend(_KINDS.items(), left)
    parts, y = [top, hatches("memory", _HATCHED)], y + 8
    for row, text in zip(rows, texts, strict=True):
        parts += [row_label(y + 15, row.processes), *_bar(row, scale, y)]
        limit = 0 if len(row.devices) > 1 else row.limit
        parts += _end(scale, _total(row), limit, y, _BAR, text)
        y += _ROW
        for name, peak, limit in _devices(row):
            note = _peak(name, peak, limit)
            width = scale(peak) - left
            parts.append(box(left, y - 8, width, _THIN, "memory-device", note))
            parts += _end(scale, peak, limit, y - 8, _THIN, note)
            y += _DEVICE
    sizes = "; ".join(
        f"{row.processes} {text}" for row, text in zip(rows, texts, strict=True)
    )
    return chart(f"Memory of each process: {sizes}.", y, *parts)


def _end(
    scale: Scale, nbytes: int, limit: int, y: float, height: float, text: str
) -> Iterator[str]:
    """Yield the mark of a limit, and the text after a bar and its mark."""
    end = scale(nbytes)
    if 0 < limit <= scale.high:
        at = scale(limit)
        end = max(end, at)
        yield line(at, y - 3, at, y + height + 3, "limit")
    yield label_at(end + 8, y + height / 2 + 4, text, "t2")


def _total(row: MemoryRow) -> int:
    return row.parameters + row.slots + row.activations


def _numbers(row: MemoryRow) -> str:
    has_limit = row.limit and len(row.devices) <= 1
    limit = f" of {format_size(row.limit)}" if has_limit else ""
    return f"{format_size(_total(row))}{limit}"


def _bar(row: MemoryRow, scale: Scale, y: float) -> Iterator[str]:
    before = 0
    sizes = (row.parameters, row.slots, row.activations)
    for (kind, what), nbytes in zip(_KINDS.items(), sizes, strict=True):
        if not nbytes:
            continue
        x, width = scale(before), scale(before + nbytes) - scale(before)
        size = format_size(nbytes)
        yield box(x, y, width, _BAR, kind, f"{row.processes}: {size} of {what}")
        if kind in _HATCHED and width >= 3:
            yield hatched("memory", kind, x, y, width, _BAR)
        yield text_in(x, y + 14, width, [size])
        before += nbytes


def _devices(row: MemoryRow) -> Iterator[tuple[str, int, int]]:
    """Yield the peak and the limit of each device of a process that has several."""
    for name, (peak, limit) in row.devices.items():
        if len(row.devices) > 1:
            yield name, peak, limit


def _peak(device: str, peak: int, limit: int) -> str:
    each = " each" if "-" in device or "," in device else ""
    of = f" of {format_size(limit)}" if limit else ""
    return f"{device}: peak {format_size(peak)}{of}{each}"
