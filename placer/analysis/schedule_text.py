"""The text form of a schedule: `parse_schedule` reads what `print_schedule` writes."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
    lines = text.splitlines()
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None:
        raise _error("expected 'schedule POLICY microbatches(COUNT) {'", lines, 0, file)
    if lines[-1] != "}":
        raise _error("expected '}'", lines, len(lines) - 1, file)
    count = int(head["count"])
    tasks: dict[str, tuple[ScheduledTask, ...]] = {}
    for i, line in enumerate(lines[1:-1], 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise _error("expected 'NODE:ID TASK TASK ...'", lines, i, file)
        node = match["node"]
        if node in tasks:
            raise _error(f"'{node}' has two lines", lines, i, file)
        tasks[node] = tuple(_parse_tasks(match["tasks"], lines, i, file))
        _check_tasks(tasks[node], count, lines, i, file)
    return Schedule(head["policy"], count, tasks)


def _parse_tasks(
    text: str, lines: list[str], at: int, file: str
) -> Iterator[ScheduledTask]:
    for word in text.split(" "):
        match = _TASK.match(word)
        if match is None:
            raise _error(f"'{word}' is not a task such as forward.0", lines, at, file)
        number = match["microbatch"]
        yield ScheduledTask(match["task"], None if number is None else int(number))


def _check_tasks(
    tasks: tuple[ScheduledTask, ...], count: int, lines: list[str], at: int, file: str
) -> None:
    microbatches_of: dict[str, list[int | None]] = {}
    for each in tasks:
        microbatches_of.setdefault(each.task, []).append(each.microbatch)
    for task, microbatches in microbatches_of.items():
        if microbatches not in ([None], [*range(count)]):
            wanted = f"once, or for the microbatches 0-{count - 1} in order"
            raise _error(f"'{task}' must run {wanted}", lines, at, file)


def _error(message: str, lines: list[str], at: int, file: str) -> GraphError:
    source = lines[at] if lines else ""
    span = Span(file, at + 1, 1, max(1, len(source)), source)
    return GraphError(message, span=span)
