"""Draws the schedule of a pipeline, declared and measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from placer.report.numbers import format_ms, plural
from placer.report.page.charts.axes import (
    Scale,
    label_at,
    line,
    share_axis,
    time_axis,
)
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
from placer.report.page.facts import PipelineRow, TaskFacts
from placer.report.page.svg import class_name
from placer.report.pipeline import task_letters

MOST_ROWS = 24
MOST_TASKS = 4000
"""The largest number of drawn tasks. Rows that exceed it are left out."""
_ROW, _BAR = 28, 20
_BUSY = 104
_HATCHED = {"purpose-backward": "/", "purpose-forward-and-backward": "|"}


def pipeline_chart(rows: Sequence[PipelineRow], *, seconds: float = 0.0) -> str:
    """Draw the tasks of each node or device from left to right. A box has the letter of
    its task and the number of its microbatch.

    Args:
        rows: the declared or the measured schedule.
        seconds: the duration of a measured step; 0 for the declared schedule.
    """
    if not rows:
        return ""
    name = "measured" if seconds else "declared"
    drawn = _first(rows)
    tasks = list(dict.fromkeys(task.name for row in rows for task in row.tasks))
    codes = {task: task_letters(task) for task in tasks}
    left = label_width(row.label for row in drawn)
    scale = Scale(0, seconds or 1.0, left, WIDTH - _BUSY)
    axis = time_axis if seconds else share_axis
    entries = [(_class(task), f"{codes[task]}: {task}") for task in tasks]
    note = "numbers: microbatches"
    if not seconds:
        note += "; lengths: declared FLOPs"
    top, y = legend(entries, left, note)
    ticks = axis(scale, y + 16, y + 26 + _ROW * len(drawn))
    parts, y = [top, hatches(name, _HATCHED), ticks], y + 26
    # Tasks of a trace are without waits and messages, but not only jitted functions.
    word = "working" if seconds else "busy"
    for row in drawn:
        busy = f"{100 * row.busy:.0f} % {word}"
        parts += [
            row_label(y + 14, row.label),
            line(left, y + _BAR, scale.end, y + _BAR, "grid"),
            *_tasks(row.tasks, scale, y, codes, name),
            label_at(scale.end + 10, y + 14, busy, "t2"),
        ]
        y += _ROW
    if len(drawn) < len(rows):
        rest = plural(len(rows) - len(drawn), "row")
        parts.append(label_at(left, y + 12, f"and {rest} more", "t2"))
        y += 20
    what = f"in a step of {format_ms(seconds)}" if seconds else "with declared FLOPs"
    shares = ", ".join(f"{row.label} {100 * row.busy:.0f} % {word}" for row in drawn)
    return chart(f"The {name} schedule {what}: {shares}.", y, *parts)


def _first(rows: Sequence[PipelineRow]) -> list[PipelineRow]:
    """Return the first rows, as many as can be drawn."""
    drawn: list[PipelineRow] = []
    count = 0
    for row in rows[:MOST_ROWS]:
        count += len(row.tasks)
        if drawn and count > MOST_TASKS:
            break
        drawn.append(row)
    return drawn


def _tasks(
    tasks: Iterable[TaskFacts],
    scale: Scale,
    y: float,
    codes: dict[str, str],
    chart_name: str,
) -> Iterator[str]:
    for task in list(tasks)[:MOST_TASKS]:
        x = scale(scale.high * task.start)
        width = scale(scale.high * task.end) - x
        class_ = _class(task.name)
        number = "" if task.microbatch is None else str(task.microbatch)
        yield box(x, y, width, _BAR, class_, _title(task, scale.high))
        if class_ in _HATCHED and width >= 3:
            yield hatched(chart_name, class_, x, y, width, _BAR)
        yield text_in(x, y + 14, width + 4, [f"{codes[task.name]}{number}", number])


def _title(task: TaskFacts, seconds: float) -> str:
    of = "" if task.microbatch is None else f" of microbatch {task.microbatch}"
    if seconds == 1.0:
        return f"{task.name}{of}: {100 * (task.end - task.start):.1f} % of the step"
    at = format_ms(seconds * task.start)
    return f"{task.name}{of}: {format_ms(seconds * (task.end - task.start))}, at {at}"


def _class(task: str) -> str:
    """Return the CSS class of a task, by its purpose."""
    words = task.split("_")
    if {"forward", "backward"} <= set(words):
        return class_name("purpose", "forward and backward")
    known = (word for word in words if word in ("forward", "backward", "update"))
    return class_name("purpose", next(known, "other"))
