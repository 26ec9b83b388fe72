"""The events that a node reports to its launcher, as JSON lines on a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from placer.channel.cause import Cause
from placer.errors import RunError
from placer.runtime.control.result import Metrics, PredictionResult, Result
from placer.runtime.control.table_counts import TableCounts
from placer.system.printable import make_printable

IMPORTING: Final = "importing"
"""The state of a node that imports JAX, its program and the model's modules."""
CONNECTING: Final = "connecting"
"""The state of a node that connects to the other nodes."""
INITIALIZING: Final = "initializing parameters"
"""The state of a node that creates its tables."""
UPDATES: Final = "compiling updates"
"""The state of a node that creates its sparse tables, and compiles what updates them."""
READING: Final = "reading rows"
"""The state of a node that reads its sources; its events have the number of rows."""
LOADING: Final = "loading a checkpoint"
"""The state of a node that loads the checkpoint from which the run continues."""
COMPARING: Final = "comparing rows"
"""The state of a node in the handshake."""
COMPILING: Final = "compiling"
"""The state of a node that runs its warm-up."""
PREPARED: Final = "ready"
"""The state of a node that waits for the others before its first step."""
BEFORE_FIRST_STEP: Final = (
    IMPORTING,
    CONNECTING,
    INITIALIZING,
    UPDATES,
    READING,
    COMPARING,
    LOADING,
    COMPILING,
    PREPARED,
)
"""The states of a node before its first step, in their order."""
WAITING: Final = "waiting for callbacks"
"""The state of a node whose next step waits for callbacks of the launcher."""
SAVING: Final = "saving"
"""The state of a node that stops and saves."""
STILL_WRITING: Final = "writing a checkpoint"
"""The state of a node whose next checkpoint is due while the last one is being written."""
AFTER_LAST_BARRIER: Final = ("writing", "done")
"""The states of a node that has passed the last barrier."""


NodeName: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"^\w{1,60}:[0-9]{1,6}(\.[0-9]{1,6})?$")
]
"""The name of a node, such as `worker:0`."""


class State(msgspec.Struct, frozen=True, tag_field="event", tag="state"):
    """What a node is doing, reported about twice a second.

    `waiting` lists the nodes that it waits for, `bytes_sent` counts payload bytes since
    the start, and `rows` counts the rows read so far, while it reads them. `tables` has the
    counts of the sparse tables that it holds.
    """

    node: NodeName
    state: str
    step: int = 0
    waiting: tuple[str, ...] = ()
    bytes_sent: int = 0
    rows: int = 0
    tables: dict[str, TableCounts] = {}


class Start(msgspec.Struct, frozen=True, tag_field="event", tag="start"):
    """The steps that the run is about to train, reported before the first of them.

    `evaluation_every` is the number of steps between evaluations, 0 without any;
    another one follows the last step. `rows` and `evaluation_rows` are the numbers of
    rows of a batch and of an evaluation.
    """

    first_step: int
    last_step: int
    steps_per_epoch: Annotated[int, msgspec.Meta(ge=1)]
    evaluation_every: int = 0
    rows: int = 0
    evaluation_rows: int = 0


class Step(
    msgspec.Struct, frozen=True, tag_field="event", tag="step", omit_defaults=True
):
    """A training step of the whole run, with `eval` if an evaluation followed it.

    `seconds` is the time from the beginning of the first step to the end of this one,
    and `evaluation_seconds` that of the evaluation. `samples_per_second` counts the
    rows of all nodes since the first step. `learning_rates` has the learning rate of
    the step by the name of the optimizer. `epoch_metrics` are the metrics over all rows
    of the epoch, if the step is its last one. `time` is when the step was reported, in
    seconds since 1970.
    """

    step: int
    epoch: int
    metrics: Metrics
    eval: Metrics | None = None
    samples_per_second: float = 0.0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    learning_rates: dict[str, float] = {}
    epoch_metrics: Metrics | None = None
    time: float = 0.0

    def history_line(self) -> dict[str, Any]:
        """Return what a history has of the step."""
        line: dict[str, Any] = {
            "step": self.step,
            "epoch": self.epoch,
            "seconds": round(self.seconds, 6),
            "metrics": self.metrics,
        }
        return line if self.eval is None else {**line, "eval": self.eval}


class Predicted(msgspec.Struct, frozen=True, tag_field="event", tag="predicted"):
    """The first `rows` of all `total` rows are predicted; reported a few times a
    second."""

    rows: int
    total: int


class CheckpointSaved(msgspec.Struct, frozen=True, tag_field="event", tag="checkpoint"):
    """A checkpoint is complete: that of `step`, in the folder `path`.

    `best` says that its evaluation is the best one so far.
    """

    step: int
    path: str
    best: bool = False


class Resumed(msgspec.Struct, frozen=True, tag_field="event", tag="resumed"):
    """The run continues after `step` from the checkpoint in the folder `path`.

    `differs` says why the results may differ from those of an uninterrupted run by
    rounding; if it is empty, they have the same bits.
    """

    step: int
    path: str
    differs: str = ""


class NodeWarning(msgspec.Struct, frozen=True, tag_field="event", tag="warning"):
    """A warning to the user; the run continues."""

    message: str


class Notice(msgspec.Struct, frozen=True, tag_field="event", tag="notice"):
    """A message to the user about what the spec or the options ask for."""

    message: str


class SignalReceived(msgspec.Struct, frozen=True, tag_field="event", tag="signal"):
    """The process of `node` has received the signal `number`, which ends the run."""

    node: NodeName
    number: Annotated[int, msgspec.Meta(ge=1, le=31)]


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
    State
    | Start
    | Step
    | Predicted
    | CheckpointSaved
    | Resumed
    | NodeWarning
    | Notice
    | SignalReceived
    | Result
    | PredictionResult
    | NodeFailure
    | Output
)

Message: TypeAlias = NodeWarning | Notice | Resumed
"""What a node says to the user."""

Report: TypeAlias = Callable[[Event], None]
"""Receives the events of a node."""


SIGNAL_LINE: Final = b'{"event": "signal"'
FAILED_LINE: Final = b'{"event": "failed"'
"""How the lines of these events begin; see `write_event`."""


def write_event(event: Event) -> bytes:
    """Return the line of an event."""
    # json writes and reads NaN and Infinity, the values of a diverging loss; msgspec
    # does not.
    return (json.dumps(msgspec.to_builtins(event)) + "\n").encode()


def read_event(node: str, line: bytes) -> Event:
    """Parse one line that `node` wrote; raises RunError if it is not an event."""
    try:
        return msgspec.convert(json.loads(line), Event)  # type: ignore[no-any-return]
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        start = line[:80].decode(errors="replace")
        raise RunError(f"{node} reported an invalid event: {start!r}") from error


def format_output(event: Output | Message) -> str:
    """Return `worker:0| text` for output, `warning: text` for a warning, and the text of
    other messages.

    Control characters are replaced, so that the text cannot steer a terminal.
    """
    if isinstance(event, Output):
        return make_printable(f"{event.node}| {event.text}")
    if isinstance(event, Resumed):
        exactly = "with the same bits as without an interruption"
        if event.differs:
            exactly = (
                "not necessarily with the same bits as without an interruption: "
                f"{event.differs}"
            )
        return make_printable(
            f"continuing after step {event.step} from {event.path}, {exactly}"
        )
    if isinstance(event, Notice):
        return make_printable(event.message)
    return make_printable(f"warning: {event.message}")


def show_output(event: Event) -> None:
    """Print an event to standard error if it is output or a message."""
    if isinstance(event, Output | Message):
        print(format_output(event), file=sys.stderr, flush=True)
