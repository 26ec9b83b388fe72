"""Draws the memory of each process and its limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from placer.report.numbers import format_flops, format_size
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
    "memory-slots": "optimizer slots",
    "memory-activations": "activations",
}
_HATCHED = {"memory-slots": "/", "memory-activations": "-"}
_ROW, _BAR, _THIN = 34, 20, 10


def memory_chart(rows: Sequence[MemoryRow]) -> str:
    """Draw a bar per process: parameters, slots and values of a step, with the limit as a
    mark. Processes with accelerators also have a bar for each device."""
    if not rows:
        return ""
    texts = [_numbers(row) for row in rows]
    notes = [_peak(*each) for row in rows for each in _accelerators(row)]
    numbers = max(text_width(each, SMALL) for each in (*texts, *notes)) + 16
    left = label_width(row.processes for row in rows)
    totals = [_total(row) for row in rows]
    peaks = [peak for row in rows for _, peak in _accelerators(row)]
    largest = max(*totals, *peaks, 1)
    # A limit far above the bars would make them invisible.
    shown = [row.limit for row in rows if row.limit <= 3 * largest]
    scale = Scale(0, max(largest, *shown, 0), left, WIDTH - numbers)
    top, y = legend(_KINDS.items(), left)
    parts, y = [top, hatches("memory", _HATCHED)], y + 8
    for row, total, text in zip(rows, totals, texts, strict=True):
        parts.append(row_label(y + 15, row.processes))
        parts += _bar(row, scale, y)
        x = scale(total)
        if row.limit and row.limit <= scale.high:
            x = max(x, scale(row.limit))
            at = scale(row.limit)
            parts.append(line(at, y - 4, at, y + _BAR + 4, "limit"))
        parts.append(label_at(x + 8, y + 15, text, _class(row)))
        y += _ROW
        for name, peak in _accelerators(row):
            note = _peak(name, peak)
            parts.append(
                box(left, y - 8, scale(peak) - left, _THIN, "memory-device", note)
            )
            parts.append(label_at(scale(peak) + 8, y + 1, note, "t2"))
            y += 20
    sizes = "; ".join(
        f"{row.processes} {text}" for row, text in zip(rows, texts, strict=True)
    )
    return chart(f"Memory of each process: {sizes}.", y, *parts)


def _total(row: MemoryRow) -> int:
    return row.parameters + row.slots + row.activations


def _host_peak(row: MemoryRow) -> int:
    """Return the peak of the host memory."""
    return next((peak for peak, limit in row.devices.values() if limit), _total(row))


def _class(row: MemoryRow) -> str:
    return "t2 exceeded" if row.limit and _host_peak(row) > row.limit else "t2"


def _numbers(row: MemoryRow) -> str:
    limit = ""
    if row.limit:
        peak = _host_peak(row)
        of = "" if peak == _total(row) else f"{format_size(peak)} in host memory, "
        limit = f" ({of}limit {format_size(row.limit)}"
        limit += ", exceeded)" if peak > row.limit else ")"
    return f"{format_size(_total(row))}{limit}, {format_flops(row.flops)}"


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


def _accelerators(row: MemoryRow) -> Iterator[tuple[str, int]]:
    """Yield the peak of each device of a process that has several."""
    for name, (peak, _) in row.devices.items():
        if len(row.devices) > 1:
            yield name, peak


def _peak(device: str, peak: int) -> str:
    return f"{device}: peak {format_size(peak)}{' each' if '-' in device else ''}"
