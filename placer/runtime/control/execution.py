"""Holds the state of a run on one node."""

from __future__ import annotations

import os
import threading
import time
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
from placer.runtime.control.events import (
    BEFORE_FIRST_STEP,
    IMPORTING,
    READING,
    RUNNING,
    Report,
    State,
)
from placer.runtime.control.options import Options
from placer.runtime.control.pace import Pace, make_pace
from placer.runtime.control.publish_settings import PublishSettings, publish_settings
from placer.runtime.control.shared_rows import SharedRows
from placer.runtime.control.table_counts import TableCounts
from placer.runtime.control.wait_samples import WaitSamples


@dataclass(slots=True)
class Timing:
    """The seconds and rows of all steps except the first, whose caches are cold."""

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
    """A run on one node, while it is in progress.

    Attributes:
        folder: the build folder.
        me: the node in the plan.
        report: a function that receives the node's events.
        on_joined: called when this node has joined the other nodes.
        on_last_barrier: called before the last barrier.
        on_settled: called when this node no longer needs other nodes.
        attempt: the number of the attempt, from 1.
        continues: whether the run has begun in an earlier attempt, as the control node knows.
        is_counted: whether this process has written that the attempt has begun.
        run: the id of the run that its attempts have in common; empty except on the control
            node of a run with `--restarts`.
        state: the state of the node in words, for the launcher.
        pass_end: the last step of the latest pass of a stream that the node has ended.
        step: the number of the last training step that was started.
        shared_rows: the rows of the node's process.
        where: returns the position in the node's program, such as `step 3`. It may be
            called from any thread.
        table_counts: returns the counts of the node's sparse tables. It may be called from
            any thread.
        staleness: returns how many gradients the node has applied with each staleness. It
            may be called from any thread.
        geo_staleness: the same for differences of workers (`geo`).
        waits: samples of the waiting of the node.
        timing: the duration of the steps.
        paced: whether the steps wait for callbacks.
        pace: delays the steps while callbacks are slow. None without callbacks, and on
            nodes that other nodes already delay.
        state_lock: held while a state is reported.
        warned: the nodes of the process that have warned of the memory of their tables, in
            any attempt.
        checkpointing: the checkpoint settings; None if the run saves no checkpoints.
        publishing: the settings of publications; None if the run publishes nothing.
        common_step: the node's part in stops and saves that the spec does not schedule.
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
    attempt: int = 1
    run: str = ""
    continues: bool = False
    is_counted: bool = False
    state: str = IMPORTING
    pass_end: int = 0
    step: int = 0
    shared_rows: SharedRows = field(default_factory=SharedRows)
    where: Callable[[], str] = lambda: ""
    table_counts: Callable[[], dict[str, TableCounts]] = dict
    staleness: Callable[[], dict[str, int]] = dict
    geo_staleness: Callable[[], dict[str, int]] = dict
    warned: set[str] = field(default_factory=set)
    waits: WaitSamples = field(init=False)
    timing: Timing = field(default_factory=Timing)
    paced: bool = False
    pace: Pace | None = field(init=False, default=None)
    # Evaluate `threading.Lock` per instance: tests replace it to watch the locks.
    state_lock: threading.Lock = field(default_factory=lambda: threading.Lock())
    checkpointing: CheckpointSettings | None = field(init=False)
    publishing: PublishSettings | None = field(init=False)
    common_step: CommonStep = field(init=False)

    def __post_init__(self) -> None:
        self.waits = WaitSamples(self.channel)
        self.checkpointing = checkpoint_settings(self.plan, self.folder, self.options)
        self.publishing = publish_settings(self.plan, self.folder, self.options)
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
        """Wait for the threads of the common step and the pace, when the run has ended."""
        self.common_step.close()
        if self.pace is not None:
            self.pace.close()

    @property
    def keeps_digests(self) -> bool:
        """Whether the run saves or loads checkpoints, which need digests of all rows."""
        return self.checkpointing is not None or self.options.resume is not None

    def report_rows(self, rows: int) -> None:
        """Store the number of rows read so far, for the next state report."""
        self.shared_rows.rows_read = rows

    @property
    def rows_read(self) -> int:
        """The number of rows read so far; 0 unless the node is reading rows."""
        return self.shared_rows.rows_read if self.state == READING else 0

    def report_state(
        self, state: str | None = None, *, pass_end: int | None = None
    ) -> None:
        """Report a new state, or repeat the current state. Safe to call from any thread."""
        with self.state_lock:
            if state is not None:
                self.state = state
            if pass_end is not None:
                self.pass_end = pass_end
            self.report(
                State(
                    self.me.name,
                    self.state,
                    self.step,
                    self.channel.waiting(),
                    self.channel.bytes_sent,
                    self.rows_read,
                    self.table_counts(),
                    self.staleness(),
                    self.geo_staleness(),
                    self.waits.counts,
                    os.getpid(),
                    round(time.process_time(), 3),
                    self.pass_end,
                )
            )

    def sample_waits(self) -> None:
        """Sample whether the node waits, if it is training. Called from a timer's thread."""
        if self.state == RUNNING:
            self.waits.take()

    @property
    def is_control(self) -> bool:
        return self.me.name == self.plan.control

    @property
    def goes_back(self) -> bool:
        """Whether the node is on its way to the first step of an attempt after a failure."""
        again = self.attempt > 1 or self.continues
        return again and self.state in BEFORE_FIRST_STEP

    @property
    def has_begun(self) -> bool:
        """Whether a step of the run has begun, in this attempt or an earlier one."""
        return self.attempt > 1 or self.continues or self.step > 0

    @property
    def emulates(self) -> bool:
        return self.options.emulate or self.plan.settings.emulate

    @property
    def position(self) -> str:
        """The step and the state of the node. Messages of other nodes quote this text."""
        doing = (
            f"{self.state} ({self.rows_read:,} rows)" if self.rows_read else self.state
        )
        where = self.where() or (f"step {self.step}" if self.step else "")
        return f"{where}, {doing}" if where and where != doing else doing
