"""Defines the events that a node reports to its launcher, as JSON lines on a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from placer.channel.cause import Cause
from placer.errors import RunError
from placer.runtime.control.result import Metrics, PredictionResult, Restart, Result
from placer.runtime.control.table_counts import TableCounts
from placer.runtime.control.wait_counts import WaitCounts
from placer.system.printable import make_printable

IMPORTING: Final = "importing"
"""State of a node that imports JAX, its program and the model's modules."""
CONNECTING: Final = "connecting"
"""State of a node that connects to the other nodes."""
INITIALIZING: Final = "initializing parameters"
"""State of a node that creates its tables."""
UPDATES: Final = "compiling updates"
"""State of a node that creates its sparse tables and compiles their updates."""
READING: Final = "reading rows"
"""State of a node that reads its sources. Its events contain the number of rows read."""
LOADING: Final = "loading a checkpoint"
"""State of a node that loads the checkpoint of `--resume`."""
COMPARING: Final = "comparing rows"
"""State of a node in the handshake, which compares the rows of all nodes."""
COMPILING: Final = "compiling"
"""State of a node that compiles its functions in the warm-up."""
PREPARED: Final = "ready"
"""State of a node that waits for the other nodes before its first step."""
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
"""The states of a node before its first step, in order."""
RUNNING: Final = "running"
"""State of a node that trains."""
WAITING: Final = "waiting for callbacks"
"""State of a node whose next step waits for slow callbacks in the launcher."""
WAITING_FOR_FILE: Final = "waiting for a file"
"""State of a node whose next pass waits for the next file of a stream."""
WAITING_FOR_ROWS: Final = "waiting for rows"
"""State of a node whose next step waits for the function of a stream."""
WAITING_IN_STREAM: Final = (WAITING_FOR_FILE, WAITING_FOR_ROWS)
"""States of a node that waits for the rows of a stream."""
SAVING: Final = "saving"
"""State of a node that stops and saves."""
STILL_WRITING: Final = "writing a checkpoint"
"""State of a node that must finish writing a checkpoint before it can save the next one."""
WRITING: Final = "writing"
"""State of a node that writes the files of a result."""
DONE: Final = "done"
"""State of a node that has done its part of a run with a result."""
AFTER_LAST_BARRIER: Final = (WRITING, DONE)
"""States of a node that has passed the last barrier."""


NodeName: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"^\w{1,60}:[0-9]{1,6}(\.[0-9]{1,6})?$")
]
"""The name of a node, such as `worker:0`."""


class State(msgspec.Struct, frozen=True, tag_field="event", tag="state"):
    """The state of a node, reported about twice a second.

    Attributes:
        state: the state in words, such as `compiling`.
        step: the current training step.
        waiting: the nodes that this node waits for.
        bytes_sent: payload bytes sent since the start.
        rows: the rows read so far; 0 unless the node is reading its sources.
        tables: the counts of the node's sparse tables, by name.
        staleness: for each staleness, how many gradients the node has applied with it.
        geo_staleness: the same for differences of workers (`geo`).
        waits: how often the node waited for other nodes since its first step.
        process: the number of the node's process. Nodes that are threads share a process.
        cpu_seconds: the CPU time of this process since its start.
        pass_end: the last step of the latest pass of a stream that the node has ended, with the
            sweep over its sparse tables; 0 for none.
    """

    node: NodeName
    state: str
    step: int = 0
    waiting: tuple[str, ...] = ()
    bytes_sent: int = 0
    rows: int = 0
    tables: dict[str, TableCounts] = {}
    staleness: dict[str, int] = {}
    geo_staleness: dict[str, int] = {}
    waits: WaitCounts = WaitCounts()
    process: int = 0
    cpu_seconds: float = 0.0
    pass_end: int = 0


class Start(msgspec.Struct, frozen=True, tag_field="event", tag="start"):
    """The range of steps of the run, reported before the first step.

    Attributes:
        evaluation_every: steps between two evaluations; 0 if the run does not evaluate. The
            run also evaluates after the last step.
        rows: the number of rows of a batch.
        evaluation_rows: the number of rows of an evaluation.
        attempt: the number of the attempt, from 1.
        workers: the step after which each worker begins, for asynchronous training.
        before: the last step before the passes over these rows, and its epoch; 0 unless the
            run has trained other rows before.

    Of a stream, `steps_per_epoch` is 0, and so is `evaluation_every` with an evaluation after
    each pass; `last_step` is 0 unless `--steps` limits the run.
    """

    first_step: int
    last_step: int
    steps_per_epoch: Annotated[int, msgspec.Meta(ge=0)]
    evaluation_every: int = 0
    rows: int = 0
    evaluation_rows: int = 0
    attempt: int = 1
    workers: dict[NodeName, int] = {}
    before: tuple[int, int] = (0, 0)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last step."""
        step, epoch = self.before
        return epoch - (step - self.last_step) // self.steps_per_epoch


class PassBegun(msgspec.Struct, frozen=True, tag_field="event", tag="pass"):
    """The event that a pass over the next files of a stream begins.

    Attributes:
        number: the number of the pass, from 1. It is the epoch of its steps.
        first_step: the first step of the pass.
        steps: the number of steps of the pass.
        files: the paths of its files, in the order of the source.
        rows: the number of rows that are trained.
        left_out: the number of rows at the end that fill no batch.
        waited: the seconds that the run waited for the files.
        is_last: whether the pass is the last one of the run.
        last: the last file so far that is trained in turn; empty for a Python function. The files
            of a pass over late files come before it.
    """

    number: int
    first_step: int
    steps: int
    files: tuple[str, ...]
    rows: int
    left_out: int = 0
    waited: float = 0.0
    is_last: bool = False
    last: str = ""

    @property
    def last_step(self) -> int:
        """The last step of the pass."""
        return self.first_step + self.steps - 1


class Step(
    msgspec.Struct, frozen=True, tag_field="event", tag="step", omit_defaults=True
):
    """A finished training step of the whole run.

    Attributes:
        step: the number of the step.
        epoch: the number of its epoch.
        eval: the metrics of the evaluation after the step, if the run evaluated.
        samples_per_second: rows of all nodes per second since the first step; 0 for the
            first step of a process, which is not measured.
        seconds: the time from the start of the first step to the end of this step.
        evaluation_seconds: the duration of the evaluation.
        learning_rates: the learning rate of each optimizer, by name.
        epoch_metrics: the metrics over all rows of the epoch, at its last step.
        time: the time of the report, in seconds since 1970.
        again: whether the launcher has reported the step before, with other metrics: the run
            has gone back after a failure, and training is asynchronous.
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
    again: bool = False

    def history_line(self) -> dict[str, Any]:
        """Return the entry of this step in the history."""
        line: dict[str, Any] = {
            "step": self.step,
            "epoch": self.epoch,
            "seconds": round(self.seconds, 6),
            "metrics": self.metrics,
        }
        return line if self.eval is None else {**line, "eval": self.eval}


class Predicted(msgspec.Struct, frozen=True, tag_field="event", tag="predicted"):
    """The progress of a prediction: `rows` of `total` rows. Reported a few times a second."""

    rows: int
    total: int


class CheckpointSaved(msgspec.Struct, frozen=True, tag_field="event", tag="checkpoint"):
    """A complete checkpoint of `step` in the folder `path`; `best` if it is the best one."""

    step: int
    path: str
    best: bool = False


class PublicationWritten(
    msgspec.Struct, frozen=True, tag_field="event", tag="publication"
):
    """A complete publication.

    Attributes:
        number: its number.
        step: its step.
        path: its folder.
        rows: the number of rows of all sparse tables in it.
        removed: the number of removed keys in it.
        is_base: whether it has all rows.
    """

    number: int
    step: int
    path: str
    rows: int = 0
    removed: int = 0
    is_base: bool = False


class Resumed(msgspec.Struct, frozen=True, tag_field="event", tag="resumed"):
    """The event that the run continues after `step` from the checkpoint in the folder `path`.

    Attributes:
        differs: why rounding may differ from an uninterrupted run. If it is empty, the results
            have the same bits.
        epoch: the first epoch over other rows than those of the checkpoint (`--new-rows`,
            `--skip-pass`); 0 if the rows are the same.
        left_out: the number of rows that the epoch before has not trained.
        is_stream: whether the epochs are passes of a stream.
        last: the last file of the stream that was trained in turn; empty for none.
        is_repeatable: whether repeated runs of the build have the same bits: nothing depends on
            timing.
    """

    step: int
    path: str
    differs: str = ""
    epoch: int = 0
    left_out: int = 0
    is_stream: bool = False
    last: str = ""
    is_repeatable: bool = True

    @property
    def warns(self) -> bool:
        """Whether rows are left out, or the results differ although the build is repeatable."""
        return bool(self.left_out or (self.differs and self.is_repeatable))


class NodeWarning(msgspec.Struct, frozen=True, tag_field="event", tag="warning"):
    """A warning for the user; the run continues."""

    message: str


class Notice(msgspec.Struct, frozen=True, tag_field="event", tag="notice"):
    """A message for the user about an effect of the spec or the options."""

    message: str


class SignalReceived(msgspec.Struct, frozen=True, tag_field="event", tag="signal"):
    """A signal that ends the run: the process of `node` received the signal `number`."""

    node: NodeName
    number: Annotated[int, msgspec.Meta(ge=1, le=31)]


class NodeFailure(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """The error with which a node ends; `root` is false if another node caused it."""

    cause: Cause
    root: bool
    message: str = ""


class Left(msgspec.Struct, frozen=True, tag_field="event", tag="left"):
    """The error for which a node leaves an attempt of a run that goes on. `root` is true if
    it is an error of this node, whose process then ends."""

    node: NodeName
    attempt: int
    cause: Cause
    root: bool
    message: str = ""


class Recovered(msgspec.Struct, frozen=True, tag_field="event", tag="recovered"):
    """The event that all nodes have gone back after a failure, and train again.

    Attributes:
        attempt: the number of the new attempt.
        step: the step after which it continues; 0 if it begins anew.
        again: the number of steps that are done again.
        seconds: the time from the failure to the first step.
        node: the node that failed; empty if it is not known.
        what: the failure.
        replaces: whether the repeated steps replace those before, because training is
            asynchronous. Otherwise they are equal, and not reported again.
        workers: the number of begun steps that each worker does again, as far as the workers
            had reported them; only for asynchronous training.
    """

    attempt: int
    step: int
    again: int
    seconds: float
    node: str = ""
    what: str = ""
    replaces: bool = False
    workers: dict[NodeName, int] = {}

    @property
    def restart(self) -> Restart:
        """The entry of the result."""
        seconds = round(self.seconds, 3)
        return Restart(
            self.node, self.what, self.step, self.again, seconds, self.workers
        )


class FewerNodes(msgspec.Struct, frozen=True, tag_field="event", tag="fewer"):
    """The event that a run goes on with fewer nodes, from another build (`--elastic`).

    Attributes:
        message: a warning with the nodes that are lost, and the number of the others.
        build: the folder of the build.
        programs: the program of each node of the build.
    """

    message: str
    build: str
    programs: dict[NodeName, str]


class Output(msgspec.Struct, frozen=True, tag_field="event", tag="output"):
    """A line that Python code on a node has printed."""

    node: str
    text: str


Event: TypeAlias = (
    State
    | Start
    | PassBegun
    | Step
    | Predicted
    | CheckpointSaved
    | PublicationWritten
    | Resumed
    | NodeWarning
    | Notice
    | SignalReceived
    | Result
    | PredictionResult
    | NodeFailure
    | Left
    | Recovered
    | FewerNodes
    | Output
)

Message: TypeAlias = NodeWarning | Notice | Resumed | Recovered | FewerNodes
"""Events with a message for the user."""

Report: TypeAlias = Callable[[Event], None]
"""A function that receives the events of a node."""


SIGNAL_LINE: Final = b'{"event": "signal"'
FAILED_LINE: Final = b'{"event": "failed"'
LEFT_LINE: Final = b'{"event": "left"'
START_LINE: Final = b'{"event": "start"'
STATE_LINE: Final = b'{"event": "state"'
RESULT_LINE: Final = b'{"event": "result"'
"""The first bytes of the lines of these events; see `write_event`."""


CUT_LINE: Final = b"\x18\n"
"""Ends a line that is incomplete, because its process was killed while it wrote the line."""


def write_event(event: Event) -> bytes:
    """Return an event as a JSON line."""
    # A diverging loss is NaN or infinite. json supports such values; msgspec does not.
    return (json.dumps(msgspec.to_builtins(event)) + "\n").encode()


def is_cut(line: bytes) -> bool:
    """Whether a line of events, without its end, is incomplete (see `CUT_LINE`)."""
    return line.endswith(CUT_LINE[:-1])


def read_event(node: str, line: bytes) -> Event:
    """Parse one line from `node`; raise RunError if it is not a valid event."""
    try:
        return msgspec.convert(json.loads(line), Event)  # type: ignore[no-any-return]
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        start = line[:80].decode(errors="replace")
        raise RunError(f"{node} reported an invalid event: {start!r}") from error


def format_output(event: Output | Message) -> str:
    """Return an event as text: `worker:0| text` for output, `warning: text` for a warning.

    Control characters are replaced, because they could change the terminal.
    """
    if isinstance(event, Output):
        return make_printable(f"{event.node}| {event.text}")
    if isinstance(event, Resumed) and event.epoch:
        rest, epoch = "", "pass" if event.is_stream else "epoch"
        differs = f"; it differs: {event.differs}" if event.differs else ""
        if event.left_out:
            rest = (
                f"; {event.left_out:,} rows of {epoch} {event.epoch - 1} are left out"
            )
        new = "" if event.is_stream else "new rows as "
        return make_printable(
            f"continuing after step {event.step} from {event.path}, with {new}{epoch}"
            f" {event.epoch}{rest}{differs}"
        )
    if isinstance(event, Resumed):
        exactly = "with the same bits as an uninterrupted run"
        if event.differs:
            exactly = (
                "not necessarily with the same bits as an uninterrupted run: "
                f"{event.differs}"
            )
        return make_printable(
            f"continuing after step {event.step} from {event.path}, {exactly}"
        )
    if isinstance(event, Recovered):
        begins = f"go back to step {event.step:,}" if event.step else "begin again"
        again = "1 step is" if event.again == 1 else f"{event.again:,} steps are"
        each = ", ".join(f"{node} {count}" for node, count in event.workers.items())
        of_each = f" ({each})" if each else ""
        return f"all nodes {begins}; {again} done again{of_each}; {event.seconds:.1f} s"
    if isinstance(event, Notice):
        return make_printable(event.message)
    return make_printable(f"warning: {event.message}")


def show_output(event: Event) -> None:
    """Print an event to standard error if it is output or a message for the user."""
    if isinstance(event, Output | Message):
        print(format_output(event), file=sys.stderr, flush=True)
