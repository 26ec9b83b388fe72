"""Draws the schedule of a pipeline: a row per node or device, time from left to
right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from placer.compiler.schedule.schedule import Schedule, ScheduledTask

_STYLES = ("black on cyan", "black on yellow", "black on green", "black on magenta")
_IDLE = "·"


def draw_schedule(schedule: Schedule, width: int) -> Iterator[Text]:
    """Draw the schedule in `width` columns, then a legend of the colors. A row starts
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
    legend = Text("  ").join(Text(f" {name} ", style) for name, style in styles.items())
    yield legend.append("  numbers are microbatches; lengths are declared FLOPs")


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


def _row(
    turns: Sequence[ScheduledTask], scale: float, columns: int, styles: dict[str, str]
) -> Text:
    row = Text()
    for turn in turns:
        begin, end = round(turn.start * scale), round(turn.end * scale)
        row.append(_IDLE * (begin - len(row)), "dim")
        number = "" if turn.microbatch is None else str(turn.microbatch)
        room = end - len(row)
        row.append(f"{number[:room]:{room}}" if room > 0 else "", styles[turn.task])
    return row.append(_IDLE * (columns - len(row)), "dim")
