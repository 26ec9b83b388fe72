"""The attempts of a job with `--restarts`, as an engine follows and reports them."""

from __future__ import annotations

from collections.abc import Iterable

from placer.channel.cause import Cause
from placer.runtime.control.events import (
    LEFT_LINE,
    START_LINE,
    Left,
    Start,
    is_cut,
    read_event,
    write_event,
)


def last_attempt_of(node: str, lines: Iterable[bytes], known: int) -> int:
    """Return the last attempt that the events of a node name, or `known` if it is later.

    Args:
        node: the node that has written the events.
        lines: complete lines of events, without line ends.
        known: the last attempt so far.
    """
    for line in lines:
        if line.startswith((START_LINE, LEFT_LINE)) and not is_cut(line):
            event = read_event(node, line)
            assert isinstance(event, Start | Left)
            known = max(known, event.attempt)
    return known


def lost_line(node: str, attempt: int, cause: Cause) -> bytes:
    """Return the event of a node that was lost in an attempt and is started again, as a line
    without its end. The node could not write it."""
    return write_event(Left(node, attempt, cause, root=True)).rstrip()
