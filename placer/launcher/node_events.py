"""What a node tells its launcher: JSON lines on a pipe, one event each."""

from __future__ import annotations

import json
from typing import TypeAlias

import msgspec

from placer.errors import RunError

Metrics: TypeAlias = dict[str, float]


class State(msgspec.Struct, frozen=True, tag_field="event", tag="state"):
    """Where a node is, about twice a second; `waiting` are the nodes it waits for.

    `rows` are those that it has read so far, while it reads them; `bytes_sent` are
    payload bytes since the start.
    """

    node: str
    state: str
    step: int = 0
    waiting: tuple[str, ...] = ()
    bytes_sent: int = 0
    rows: int = 0


class Step(msgspec.Struct, frozen=True, tag_field="event", tag="step"):
    """A training step of the whole run; `eval` when an evaluation followed it.

    `samples_per_second` are global rows per second so far, without the first step.
    """

    step: int
    epoch: int
    metrics: Metrics
    eval: Metrics | None = None
    samples_per_second: float = 0.0


class Warned(msgspec.Struct, frozen=True, tag_field="event", tag="warning"):
    """Something that the user should know of, in a run that goes on."""

    message: str


class Finished(msgspec.Struct, frozen=True, tag_field="event", tag="result"):
    """The run is over, and this came of it."""

    steps: int
    metrics: Metrics
    eval: Metrics
    samples_per_second: float
    bytes_sent: dict[str, int]


class Blame(msgspec.Struct, frozen=True):
    """Which node failed, where in its program, and what happened."""

    node: str
    where: str
    what: str


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """A node ends with an error; not `root` when it only heard of another's."""

    cause: Blame
    root: bool
    message: str = ""


class Output(msgspec.Struct, frozen=True, tag_field="event", tag="output"):
    """A line that Python code has printed in a node."""

    node: str
    text: str


Event: TypeAlias = State | Step | Warned | Finished | Failed | Output


def read_event(node: str, line: bytes) -> Event:
    """The event of one line that `node` wrote; RunError when it is none."""
    try:
        # json reads NaN and Infinity, which a diverging loss is.
        return msgspec.convert(json.loads(line), Event)  # type: ignore[no-any-return]
    except (ValueError, msgspec.ValidationError) as error:
        start = line[:80].decode(errors="replace")
        raise RunError(f"{node} reported what is no event: {start!r}") from error
