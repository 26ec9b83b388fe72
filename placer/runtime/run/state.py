"""A run as one node sees it: how it is to go, how far it is, and what came of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from placer.build.plan import Node as NodePlan
from placer.build.plan import Plan
from placer.channel.protocol import Channel
from placer.runtime.program.node import Node
from placer.runtime.run.events import READING, Report
from placer.runtime.run.stopping import Stopping


@dataclass(frozen=True, slots=True)
class Options:
    """How a run goes, beside what the build says.

    `steps` runs exactly that many whatever `epochs` says; the files are written or
    read by the nodes themselves; `join_timeout` and `deadline` are seconds; `carrier`
    is "shared", "zeromq" or "auto", the same on all nodes (`channel/carrier.py`).
    With `emulate` every device that is no CPU is a CPU device of its own. With
    `debug_nans` ops run one by one, and the first that gives NaN ends the run.
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
    """What came of a run.

    `metrics` are those of the last epoch, or of the part of it that ran, and `eval`
    those of the last evaluation: over all of their rows. `samples_per_second` counts
    global rows without the first step; `bytes_sent` are payload bytes by node.
    `warnings` tell of processes that failed when the run already had this result.
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
    """Seconds and rows of the steps after the first, in which caches are cold."""

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
    """One node's run in progress; `state` is what its launcher is shown.

    `settle` is called once this node needs no other any more.
    """

    plan: Plan
    folder: Path
    me: NodePlan
    channel: Channel
    options: Options
    report: Report
    settle: Callable[[], None] = lambda: None
    state: str = "joining"
    step: int = 0
    rows_read: int = 0
    node: Node | None = None
    timing: Timing = field(default_factory=Timing)
    telling: threading.Lock = field(default_factory=threading.Lock)
    stopping: Stopping = field(init=False)

    def __post_init__(self) -> None:
        self.stopping = Stopping(self.plan, self.channel)

    def report_rows(self, rows: int) -> None:
        """Note how many rows have been read; the next report of the state has it."""
        self.rows_read = rows

    def tell(self, state: str | None = None) -> None:
        """Report a new state, or the present one once more. From any thread."""
        with self.telling:
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
