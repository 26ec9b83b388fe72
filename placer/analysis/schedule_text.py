"""The text form of a schedule: `print_schedule` and `parse_schedule` are each other's
inverse."""

from __future__ import annotations

import re
from collections.abc import Iterator

from placer.analysis.schedule import Schedule, Turn
from placer.errors import GraphError, Span

_HEAD = re.compile(r"schedule (?P<policy>[a-z0-9]+) microbatches\((?P<count>\d+)\) \{")
_LINE = re.compile(r"  (?P<node>[a-z][a-z0-9_]*:\d+) (?P<turns>.+)")
_TURN = re.compile(r"(?P<block>[a-z][a-z0-9_]*)(\.(?P<microbatch>\d+))?\Z")


def print_schedule(schedule: Schedule) -> str:
    """The schedule as text, one node a line."""
    head = f"schedule {schedule.policy} microbatches({schedule.microbatches}) {{"
    lines = [f"  {node} {' '.join(schedule.of(node))}" for node in schedule.turns]
    return "\n".join([head, *lines, "}"]) + "\n"


def parse_schedule(text: str, file: str = "schedule.txt") -> Schedule:
    """Read a schedule; GraphError where a line is none of it, or a block does not run
    once for each microbatch."""
    lines = text.splitlines()
    head = _HEAD.fullmatch(lines[0]) if lines else None
    if head is None:
        raise _error("expected 'schedule POLICY microbatches(COUNT) {'", lines, 0, file)
    if lines[-1] != "}":
        raise _error("expected '}'", lines, len(lines) - 1, file)
    count = int(head["count"])
    turns: dict[str, tuple[Turn, ...]] = {}
    for i, line in enumerate(lines[1:-1], 1):
        found = _LINE.fullmatch(line)
        if found is None:
            raise _error("expected 'NODE:ID TURN TURN ...'", lines, i, file)
        if found["node"] in turns:
            raise _error(f"'{found['node']}' has its turns twice", lines, i, file)
        made = tuple(_turns(found["turns"], lines, i, file))
        _check(made, count, lines, i, file)
        turns[found["node"]] = made
    return Schedule(head["policy"], count, turns)


def _turns(text: str, lines: list[str], at: int, file: str) -> Iterator[Turn]:
    for word in text.split(" "):
        found = _TURN.match(word)
        if found is None:
            raise _error(f"'{word}' is no turn, as forward.0 is", lines, at, file)
        number = found["microbatch"]
        yield Turn(found["block"], None if number is None else int(number))


def _check(
    turns: tuple[Turn, ...], count: int, lines: list[str], at: int, file: str
) -> None:
    of_block: dict[str, list[int | None]] = {}
    for turn in turns:
        of_block.setdefault(turn.block, []).append(turn.microbatch)
    for block, found in of_block.items():
        if found not in ([None], [*range(count)]):
            message = f"'{block}' must run once, or for the microbatches 0-{count - 1} in turn"
            raise _error(message, lines, at, file)


def _error(message: str, lines: list[str], at: int, file: str) -> GraphError:
    source = lines[at] if lines else ""
    span = Span(file, at + 1, 1, max(1, len(source)), source)
    return GraphError(message, span=span)
