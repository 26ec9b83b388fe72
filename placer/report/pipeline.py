"""The schedule of a step with microbatches, drawn: a row for each node, and for each of its
devices that take turns; time to the right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from placer.analysis.schedule import Schedule, Turn

_STYLES = ("black on cyan", "black on yellow", "black on green", "black on magenta")
_IDLE = "·"


def drawn(schedule: Schedule, width: int) -> Iterator[Text]:
    """The rows in so many columns, each with its name before it and behind it how much of
    the time it is at work; then what the colours mean."""
    rows = dict(_rows(schedule))
    names = dict.fromkeys(t.block for turns in schedule.turns.values() for t in turns)
    styles = {name: _STYLES[i % len(_STYLES)] for i, name in enumerate(names)}
    label = max(map(len, rows))
    columns = max(1, width - label - len("  100 %") - 1)
    end = max(turns[-1].end for turns in rows.values())
    for name, turns in rows.items():
        busy = sum(turn.end - turn.begin for turn in turns)
        row = Text(f"{name:{label}} ")
        row.append_text(_row(turns, columns / end, columns, styles))
        row.append(f" {round(100 * busy / end):3} %")
        yield row
    legend = Text("  ").join(Text(f" {name} ", style) for name, style in styles.items())
    yield legend.append("  numbers are microbatches; lengths are declared FLOPs")


def _rows(schedule: Schedule) -> Iterator[tuple[str, Sequence[Turn]]]:
    """The turns of each node, or where it has several devices, of each of them."""
    for node, turns in schedule.turns.items():
        devices = dict.fromkeys(each for turn in turns for each in turn.devices)
        if len(devices) < 2:
            yield node, turns
            continue
        for each in devices:
            yield f"{node} {each}", [turn for turn in turns if each in turn.devices]


def _row(
    turns: Sequence[Turn], scale: float, columns: int, styles: dict[str, str]
) -> Text:
    row = Text()
    for turn in turns:
        begin, end = round(turn.begin * scale), round(turn.end * scale)
        row.append(_IDLE * (begin - len(row)), "dim")
        number = "" if turn.microbatch is None else str(turn.microbatch)
        room = end - len(row)
        row.append(f"{number[:room]:{room}}" if room > 0 else "", styles[turn.block])
    return row.append(_IDLE * (columns - len(row)), "dim")
