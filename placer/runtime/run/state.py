"""A run as one node sees it: its options, its progress and its result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from placer.build.plan import NodePlan, Plan
from placer.channel.protocol import Channel
from placer.runtime.program.node import Node
from placer.runtime.run.events import READING, Report
from placer.runtime.run.stopping import StopProtocol


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run, besides what the build specifies.

    Attributes:
        steps: the number of training steps; None for the epochs of the spec.
        history: the file that the control node writes a line of JSON per step to.
        save_params: the file that the control node saves the parameters to.
        init_params: a file of parameters to start from, which every node reads.
        join_timeout: the longest that a node waits for the others to join, in seconds.
        deadline: the longest that a node waits for a message from a live peer, in
            seconds.
        carrier: the transport between processes: `shared`, `zeromq` or `auto`. It must
            be the same on all nodes.
        emulate: whether CPU devices take the place of devices of other kinds.
        debug_nans: whether ops run one by one, and the first that returns NaN ends the
            run.

    Example:
        placer.run("build", "worker:0", options=placer.Options(steps=100))
    """

    steps: int | None = None
    history: Path | None = None
    save_params: Path | None = None
    init_params: Path | None = None
    join_timeout: float = 600.0
    deadline: float = 600.0
    carrier: str = "auto"
    emulate: bool = False
    debug_nans: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    Attributes:
        steps: the number of training steps.
        metrics: the metrics over all rows of the last epoch, or of the part of it that
            ran.
        eval: the metrics over all rows of the last evaluation.
        samples_per_second: rows of the global batch per second, without the first step.
        bytes_sent: the payload bytes that each node sent.
        warnings: messages about processes that failed after the run had this result.

    Example:
        result = placer.launch("build")
        print(result.eval["accuracy"])
    """

    steps: int
    metrics: dict[str, float]
    eval: dict[str, float]
    samples_per_second: float
    bytes_sent: dict[str, int]
    warnings: tuple[str, ...] = ()


Hook = Callable[[Node], None]


@dataclass(slots=True)
class Timing:
    """The seconds and rows of all steps but the first, whose caches are cold."""

    steps: int = 0
    seconds: float = 0.0
    rows: int = 0

    def add(self, seconds: float, rows: int) -> None:
        self.steps += 1
        if self.steps > 1:
            self.seconds += seconds
            self.rows += rows

    @property
    def rate(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Execution:
    """The run of one node in progress.

    Attributes:
        plan: the plan.
        folder: the build folder.
        me: the node in the plan.
        channel: the node's channel.
        options: the options of the run.
        report: receives the node's events.
        on_settled: called once this node needs no other node any more.
        state: what the node does, for its launcher.
        step: the number of the last training step that was started.
        rows_read: the number of rows that the current source has read.
        node: the node as its program sees it, once it exists.
        timing: the duration of the steps.
        state_lock: held while a state is reported.
        stopping: the node's part in stopping the run early.
    """

    plan: Plan
    folder: Path
    me: NodePlan
    channel: Channel
    options: Options
    report: Report
    on_settled: Callable[[], None] = lambda: None
    state: str = "joining"
    step: int = 0
    rows_read: int = 0
    node: Node | None = None
    timing: Timing = field(default_factory=Timing)
    state_lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: StopProtocol = field(init=False)

    def __post_init__(self) -> None:
        self.stopping = StopProtocol(self.plan, self.channel)

    def report_rows(self, rows: int) -> None:
        """Store how many rows have been read, for the next report of the state."""
        self.rows_read = rows

    def report_state(self, state: str | None = None) -> None:
        """Report a new state, or the current one again. May be called from any
        thread."""
        with self.state_lock:
            if state is not None:
                self.state = state
            self.report(
                {
                    "event": "state",
                    "node": self.me.name,
                    "state": self.state,
                    "step": self.step,
                    "rows": self.rows_read if self.state == READING else 0,
                    "waiting": list(self.channel.waiting()),
                    "bytes_sent": self.channel.bytes_sent,
                }
            )

    @property
    def is_control(self) -> bool:
        return self.me.name == self.plan.control

    @property
    def emulates(self) -> bool:
        return self.options.emulate or self.plan.emulate

    @property
    def where(self) -> str:
        return self.node.where if self.node is not None else ""
