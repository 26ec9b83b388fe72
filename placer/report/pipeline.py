"""Draws the schedule of a pipeline: a row per node or device, time from left to
right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from placer.compiler.schedule.schedule import Schedule, ScheduledTask

_STYLES = ("black on cyan", "black on yellow", "black on green", "black on magenta")
_IDLE, _BORDER = "·", "|"


def draw_schedule(schedule: Schedule, width: int) -> Iterator[Text]:
    """Draw the schedule in `width` columns, then a legend of the letters. A row starts
    with a label and ends with the percentage of busy time."""
    rows = dict(rows_of(schedule))
    names = dict.fromkeys(t.task for turns in schedule.tasks.values() for t in turns)
    styles = {name: _STYLES[i % len(_STYLES)] for i, name in enumerate(names)}
    label = max(map(len, rows))
    columns = max(1, width - label - len("  100 %") - 1)
    end = max(turns[-1].end for turns in rows.values())
    for name, turns in rows.items():
        busy = sum(turn.end - turn.start for turn in turns)
        row = Text(f"{name:{label}} ")
        row.append_text(_row(turns, columns / end, columns, styles))
        row.append(f" {round(100 * busy / end):3} %")
        yield row
    legend = Text("  ").join(
        Text(f"{task_letters(name)} {name}", style) for name, style in styles.items()
    )
    yield legend
    yield Text("numbers: microbatches; lengths: declared FLOPs; last column: busy time")


def rows_of(schedule: Schedule) -> Iterator[tuple[str, Sequence[ScheduledTask]]]:
    """Yield a label and the tasks of each node, or of each of its devices if
    several.
    """
    for node, turns in schedule.tasks.items():
        devices = dict.fromkeys(each for turn in turns for each in turn.devices)
        if len(devices) < 2:
            yield node, turns
            continue
        for each in devices:
            yield f"{node} {each}", [turn for turn in turns if each in turn.devices]


def task_letters(task: str) -> str:
    """Return the letters of a task: `fb` for forward_backward, `f2.` for forward_2."""
    words = task.split("_")
    letters = "".join(word[:1] for word in words if not word.isdecimal())
    return f"{letters}{words[-1]}." if words[-1].isdecimal() else letters


def _row(
    turns: Sequence[ScheduledTask], scale: float, columns: int, styles: dict[str, str]
) -> Text:
    """Draw tasks from left to right. A border begins each task and ends the last one."""
    row = Text()
    for turn in turns:
        begin, end = round(turn.start * scale), round(turn.end * scale)
        row.append_text(_idle(begin - len(row), is_after_task=bool(row)))
        number = "" if turn.microbatch is None else str(turn.microbatch)
        cell, room = f"{_BORDER}{task_letters(turn.task)}{number}", end - len(row)
        row.append(f"{cell[:room]:{room}}" if room > 0 else "", styles[turn.task])
    return row.append_text(_idle(columns - len(row), is_after_task=True))


def _idle(width: int, *, is_after_task: bool) -> Text:
    border = _BORDER if is_after_task and width > 1 else ""
    return Text(f"{border}{_IDLE * (width - len(border))}", "dim")
