"""The events that a node reports to its launcher, as JSON lines on a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from placer.channel.cause import Cause
from placer.errors import RunError
from placer.printable import make_printable
from placer.runtime.run.result import Metrics, PredictionResult, Result

READING: Final = "reading rows"
"""The state of a node that reads its sources; its events have the number of rows."""
BEFORE_FIRST_STEP: Final = ("joining", READING, "compiling")
"""The states of a node before its first step."""
AFTER_LAST_BARRIER: Final = ("writing", "done")
"""The states of a node that has passed the last barrier."""


class State(msgspec.Struct, frozen=True, tag_field="event", tag="state"):
    """What a node is doing, reported about twice a second.

    `waiting` lists the nodes that it waits for, `bytes_sent` counts payload bytes since
    the start, and `rows` counts the rows read so far, while it reads them.
    """

    node: str
    state: str
    step: int = 0
    waiting: tuple[str, ...] = ()
    bytes_sent: int = 0
    rows: int = 0


class Step(msgspec.Struct, frozen=True, tag_field="event", tag="step"):
    """A training step of the whole run, with `eval` if an evaluation followed it.

    `samples_per_second` counts the rows of all nodes since the first step.
    """

    step: int
    epoch: int
    metrics: Metrics
    eval: Metrics | None = None
    samples_per_second: float = 0.0


class NodeWarning(msgspec.Struct, frozen=True, tag_field="event", tag="warning"):
    """A warning to the user; the run continues."""

    message: str


class NodeFailure(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """A node ends with an error; `root` is false if the error is another node's."""

    cause: Cause
    root: bool
    message: str = ""


class Output(msgspec.Struct, frozen=True, tag_field="event", tag="output"):
    """A line that Python code of a node has printed."""

    node: str
    text: str


Event: TypeAlias = (
    State | Step | NodeWarning | Result | PredictionResult | NodeFailure | Output
)

Report: TypeAlias = Callable[[Event], None]
"""Receives the events of a node."""


def write_event(event: Event) -> bytes:
    """Return the line of an event."""
    # json writes and reads NaN and Infinity, the values of a diverging loss; msgspec
    # does not.
    return (json.dumps(msgspec.to_builtins(event)) + "\n").encode()


def read_event(node: str, line: bytes) -> Event:
    """Parse one line that `node` wrote; raises RunError if it is not an event."""
    try:
        return msgspec.convert(json.loads(line), Event)  # type: ignore[no-any-return]
    except (ValueError, msgspec.ValidationError) as error:
        start = line[:80].decode(errors="replace")
        raise RunError(f"{node} reported an invalid event: {start!r}") from error


def format_output(event: Output | NodeWarning) -> str:
    """Return `worker:0| text` for output, `warning: text` for a warning.

    Control characters are replaced, so that the text cannot steer a terminal.
    """
    if isinstance(event, Output):
        return make_printable(f"{event.node}| {event.text}")
    return make_printable(f"warning: {event.message}")


def show_output(event: Event) -> None:
    """Print an event to standard error if it is output or a warning."""
    if isinstance(event, Output | NodeWarning):
        print(format_output(event), file=sys.stderr, flush=True)
