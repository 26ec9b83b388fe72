"""A run as one node sees it, while it is in progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from placer.channel.interface import Channel
from placer.plan.plan import NodePlan, Plan
from placer.runtime.control.checkpoint_settings import (
    CheckpointSettings,
    checkpoint_settings,
)
from placer.runtime.control.common_step import CommonStep
from placer.runtime.control.events import IMPORTING, READING, Report, State
from placer.runtime.control.options import Options
from placer.runtime.control.pace import Pace, make_pace
from placer.runtime.control.shared_rows import SharedRows
from placer.runtime.control.table_counts import TableCounts


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
        on_joined: called once this node has joined the others.
        on_last_barrier: called before the last barrier.
        on_settled: called once this node needs no other node any more.
        state: what the node does, for its launcher.
        step: the number of the last training step that was started.
        shared_rows: the rows of the node's process.
        where: returns where the node's program is, such as `step 3`.
        table_counts: returns what has happened in the sparse tables of the node so far.
            Like `where`, it may be called from any thread.
        timing: the duration of the steps.
        paced: whether the run has callbacks, for which the steps wait.
        pace: holds the steps back while callbacks are slow; None without callbacks, and
            on a node that only waits for other nodes.
        state_lock: held while a state is reported.
        checkpointing: the settings of checkpoints, None if none are saved.
        common_step: the node's part in ending or saving the run at a step that the spec
            does not fix.
    """

    plan: Plan
    folder: Path
    me: NodePlan
    channel: Channel
    options: Options
    report: Report
    on_joined: Callable[[], None] = lambda: None
    on_last_barrier: Callable[[], None] = lambda: None
    on_settled: Callable[[], None] = lambda: None
    state: str = IMPORTING
    step: int = 0
    shared_rows: SharedRows = field(default_factory=SharedRows)
    where: Callable[[], str] = lambda: ""
    table_counts: Callable[[], dict[str, TableCounts]] = dict
    timing: Timing = field(default_factory=Timing)
    paced: bool = False
    pace: Pace | None = field(init=False, default=None)
    # Looked up when it is made: tests watch the locks.
    state_lock: threading.Lock = field(default_factory=lambda: threading.Lock())
    checkpointing: CheckpointSettings | None = field(init=False)
    common_step: CommonStep = field(init=False)

    def __post_init__(self) -> None:
        self.checkpointing = checkpoint_settings(self.plan, self.folder, self.options)
        self.common_step = CommonStep(
            self.plan,
            self.channel,
            max_lead=self.plan.max_lead,
            companions=self.plan.companions,
        )
        if self.paced and (pace := make_pace(self.plan, self.channel)) is not None:
            self.pace = pace
            self.common_step.on_round = pace.wake

    def close(self) -> None:
        """Wait for the threads of this node's control: its run is over, or has failed."""
        self.common_step.close()
        if self.pace is not None:
            self.pace.close()

    @property
    def keeps_digests(self) -> bool:
        """Whether the control node needs the digests of all rows."""
        return self.checkpointing is not None or self.options.resume is not None

    def report_rows(self, rows: int) -> None:
        """Store how many rows have been read, for the next report of the state."""
        self.shared_rows.rows_read = rows

    @property
    def rows_read(self) -> int:
        """The number of rows that have been read, while the node reads."""
        return self.shared_rows.rows_read if self.state == READING else 0

    def report_state(self, state: str | None = None) -> None:
        """Report a new state, or the current one again. May be called from any
        thread."""
        with self.state_lock:
            if state is not None:
                self.state = state
            self.report(
                State(
                    self.me.name,
                    self.state,
                    self.step,
                    self.channel.waiting(),
                    self.channel.bytes_sent,
                    self.rows_read,
                    self.table_counts(),
                )
            )

    @property
    def is_control(self) -> bool:
        return self.me.name == self.plan.control

    @property
    def emulates(self) -> bool:
        return self.options.emulate or self.plan.settings.emulate

    @property
    def position(self) -> str:
        """What the node does, and at which step, as other nodes tell it."""
        doing = (
            f"{self.state} ({self.rows_read:,} rows)" if self.rows_read else self.state
        )
        where = self.where() or (f"step {self.step}" if self.step else "")
        return f"{where}, {doing}" if where and where != doing else doing
