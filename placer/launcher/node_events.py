"""The events that a node reports to its launcher, as JSON lines on a pipe."""

from __future__ import annotations

import json
from typing import TypeAlias

import msgspec

from placer.errors import RunError

Metrics: TypeAlias = dict[str, float]


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


class RunResult(msgspec.Struct, frozen=True, tag_field="event", tag="result"):
    """The result of a run that has finished."""

    steps: int
    metrics: Metrics
    eval: Metrics
    samples_per_second: float
    bytes_sent: dict[str, int]


class FailureCause(msgspec.Struct, frozen=True):
    """The node that failed, the position in its program, and what happened."""

    node: str
    where: str
    what: str


class NodeFailure(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """A node ends with an error; `root` is false if the error is another node's."""

    cause: FailureCause
    root: bool
    message: str = ""


class Output(msgspec.Struct, frozen=True, tag_field="event", tag="output"):
    """A line that Python code of a node has printed."""

    node: str
    text: str


Event: TypeAlias = State | Step | NodeWarning | RunResult | NodeFailure | Output


def read_event(node: str, line: bytes) -> Event:
    """Parse one line that `node` wrote; raises RunError if it is not an event."""
    try:
        # json parses NaN and Infinity, the values of a diverging loss; msgspec does
        # not.
        return msgspec.convert(json.loads(line), Event)  # type: ignore[no-any-return]
    except (ValueError, msgspec.ValidationError) as error:
        start = line[:80].decode(errors="replace")
        raise RunError(f"{node} reported an invalid event: {start!r}") from error
