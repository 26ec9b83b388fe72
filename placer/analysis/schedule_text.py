"""The text form of a schedule: `parse_schedule` reads what `print_schedule` writes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from placer.analysis.schedule import Schedule, ScheduledTask
from placer.errors import GraphError, Span

_HEAD = re.compile(r"schedule (?P<policy>[a-z0-9]+) microbatches\((?P<count>\d+)\) \{")
_LINE = re.compile(r"  (?P<node>[a-z][a-z0-9_]*:\d+) (?P<tasks>.+)")
_TASK = re.compile(r"(?P<task>[a-z][a-z0-9_]*)(\.(?P<microbatch>\d+))?\Z")


def print_schedule(schedule: Schedule) -> str:
    """Return the schedule as text, with one line for each node."""
    head = f"schedule {schedule.policy} microbatches({schedule.microbatches}) {{"
    lines = [
        f"  {node} {' '.join(schedule.task_names(node))}" for node in schedule.tasks
    ]
    return "\n".join([head, *lines, "}"]) + "\n"


def parse_schedule(text: str, file: str = "schedule.txt") -> Schedule:
    """Parse a schedule; `file` names it in errors.

    Raises GraphError, with its line, for text that is not a schedule, and for a task
    that does not run either once or for each microbatch in order.
    """
    lines = text.splitlines() or [""]
    tasks: dict[str, tuple[ScheduledTask, ...]] = {}
    at = 0  # the index of the line that is read
    try:
        head = _match(_HEAD, lines[0], "'schedule POLICY microbatches(COUNT) {'")
        count = int(head["count"])
        at = len(lines) - 1
        if lines[at] != "}":
            raise ValueError("expected '}'")
        for at in range(1, len(lines) - 1):
            match = _match(_LINE, lines[at], "'NODE:ID TASK TASK ...'")
            node = match["node"]
            if node in tasks:
                raise ValueError(f"'{node}' has two lines")
            tasks[node] = tuple(map(_parse_task, match["tasks"].split(" ")))
            _check_tasks(tasks[node], count)
    except ValueError as error:
        span = Span(file, at + 1, 1, max(1, len(lines[at])), lines[at])
        raise GraphError(str(error), span=span) from error
    return Schedule(head["policy"], count, tasks)


def _match(pattern: re.Pattern[str], line: str, expected: str) -> re.Match[str]:
    match = pattern.fullmatch(line)
    if match is None:
        raise ValueError(f"expected {expected}")
    return match


def _parse_task(word: str) -> ScheduledTask:
    match = _TASK.match(word)
    if match is None:
        raise ValueError(f"'{word}' is not a task such as forward.0")
    number = match["microbatch"]
    return ScheduledTask(match["task"], None if number is None else int(number))


def _check_tasks(tasks: Sequence[ScheduledTask], count: int) -> None:
    """Raise ValueError for a task that does not run once or for each microbatch."""
    microbatches_of: dict[str, list[int | None]] = {}
    for each in tasks:
        microbatches_of.setdefault(each.task, []).append(each.microbatch)
    for task, microbatches in microbatches_of.items():
        if microbatches not in ([None], [*range(count)]):
            wanted = f"once, or for the microbatches 0-{count - 1} in order"
            raise ValueError(f"'{task}' must run {wanted}")
