"""Records the timeline of a run on one node, for `--trace`.

All nodes record the same steps. After the last recorded step, or at the end of the run, the
other nodes send their slices to the control node. It writes the file at the end. The control
node measures the clocks before and after the recorded steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from placer.channel.interface import Aborted, Channel
from placer.errors import PlacerError
from placer.plan.plan import Plan
from placer.runtime.batches.passes import Position
from placer.runtime.control.barrier import CLOCKS, barrier
from placer.runtime.control.events import NodeWarning
from placer.runtime.control.execution import Execution
from placer.runtime.control.failure import root_cause_reported
from placer.runtime.control.timeline_window import DEFAULT_STEPS, Window, parse_window
from placer.runtime.node.program_file import Hooks
from placer.runtime.timeline.chrome import write_timeline
from placer.runtime.timeline.clocks import (
    Clock,
    Measurement,
    clock_name,
    measure_clocks,
)
from placer.runtime.timeline.message_names import MessageNames
from placer.runtime.timeline.part import Part, part_of, receive_part, send_part
from placer.runtime.timeline.recorder import READ, STEP, Recorder
from placer.runtime.timeline.timeline import Timeline
from placer.runtime.timeline.traced_channel import traced_channel
from placer.runtime.timeline.traced_node import traced_hooks
from placer.runtime.timeline.watched_threads import WatchedThreads
from placer.system.owned_threads import OwnedThreads

MAX_OF_NODE: Final = 100_000
"""The largest number of slices of a node. Each slice needs 88 bytes."""
MAX_OF_RUN: Final = 500_000
"""The largest number of slices of all nodes together. More slices make viewers slow."""


@dataclass(slots=True)
class Recording:
    """One node's part in the timeline of a run.

    The thread that runs the program must create it.

    Attributes:
        window: the steps to record. Without `--trace-steps`, it is None until the first
            step.
        recorder: the recorder of this node's slices.
    """

    execution: Execution
    window: Window | None = field(init=False)
    recorder: Recorder = field(init=False)
    _first: int = field(default=0, init=False)
    _last: int = field(default=0, init=False)
    _has_ended: bool = field(default=False, init=False)
    _is_written: bool = field(default=False, init=False)
    _clocks: dict[str, str] = field(default_factory=dict, init=False)
    _measurements: dict[str, list[Measurement]] = field(
        default_factory=dict, init=False
    )
    _parts: list[Part] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        steps = self.execution.options.trace_steps
        self.window = None if steps is None else parse_window(steps)
        nodes = len(self.execution.plan.nodes)
        self.recorder = Recorder(min(MAX_OF_NODE, MAX_OF_RUN // nodes))

    @property
    def _plan(self) -> Plan:
        return self.execution.plan

    @property
    def _channel(self) -> Channel:
        return self.execution.channel

    def traced_channel(self) -> Channel:
        """Return a channel that records the messages of the program."""
        return traced_channel(self._channel, self.recorder, MessageNames(self._plan))

    def traced_hooks(self, hooks: Hooks) -> Hooks:
        """Return the hooks of the program with recording."""
        return traced_hooks(hooks, self.recorder)

    def watch_threads(self, threads: OwnedThreads) -> None:
        """Record how the threads of an owner, and the owner, wait for each other."""
        WatchedThreads(threads.changed, self.recorder, self._channel.node)

    def reading(self, position: Position) -> AbstractContextManager[None]:
        """Return a context manager that records the reading of a batch."""
        return self.recorder.slice(READ, f"read batch {position[1]}")

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Return a context manager that records a step if it is in the window."""
        self._enter(number)
        with self.recorder.slice(STEP, f"step {number}"):
            yield

    def begin(self) -> None:
        """Measure the clocks. All nodes call this before the first step."""
        report = {"clock": clock_name()}
        reports = barrier(self._plan, self._channel, report, CLOCKS)
        self._clocks = {
            node.name: str(each["clock"])
            for node, each in zip(self._plan.nodes, reports, strict=True)
        }
        self._measure(0)

    def _enter(self, step: int) -> None:
        """Note that a step begins, and record it if it is in the window."""
        if self._has_ended:
            return
        self._first = self._first or step
        if self.window is None:
            self.window = Window(step, step + DEFAULT_STEPS - 1)
        if step in self.window:
            self._last = self.recorder.step = step
            self.recorder.active = True
        elif step > self.window.last:
            self.end()

    def end(self) -> None:
        """Send the slices to the control node; on the control node, receive them.

        All nodes call this after the last step of the window or of the run.
        """
        if self._has_ended:
            return
        self._has_ended, self.recorder.active = True, False
        self._measure(1)
        own = part_of(self._channel.node, self.recorder)
        if not self.execution.is_control:
            send_part(self._channel, self._plan.control, own)
            return
        for node in self._plan.nodes:
            is_own = node.name == own.node
            self._parts.append(
                own if is_own else receive_part(self._channel, node.name)
            )

    def write(self) -> dict[str, dict[str, float]]:
        """Write the file on the control node, and return the result of `Timeline.shares`.

        Raises RunError if the file cannot be written.
        """
        path = self.execution.options.trace
        assert path is not None
        timeline = self._timeline(self._parts)
        self._is_written = (
            True  # even if writing fails: do not try again after a failure
        )
        write_timeline(path, timeline)
        if not self._last:
            self.execution.report(
                NodeWarning(
                    f"the trace {path} has no steps: the run did not reach the steps of"
                    f" --trace-steps {timeline.window}"
                )
            )
        return timeline.shares()

    def write_after_failure(self, failure: str) -> None:
        """Write the slices so far to the file, on the control node of a failed run.

        The file contains the slices of other nodes only if the run failed after the window.
        If no step was recorded, no file is written.
        """
        path = self.execution.options.trace
        if path is None or self._is_written or not self._last:
            return
        self.recorder.active = False
        parts = self._parts or [part_of(self._channel.node, self.recorder)]
        timeline = self._timeline(parts, failure)
        try:
            write_timeline(path, timeline)
        except PlacerError as error:
            self.execution.report(NodeWarning(str(error)))
            return
        without = (
            f", without the slices of {', '.join(missing)}"
            if (missing := timeline.missing)
            else ""
        )
        self.execution.report(
            NodeWarning(f"the trace until the failure is in {path}{without}")
        )

    def _timeline(self, parts: list[Part], failure: str = "") -> Timeline:
        first, last = self._first, max(self._last, self._first)
        return Timeline(
            [node.name for node in self._plan.nodes],
            parts,
            self.window or Window(first, last),
            {node: Clock(tuple(each)) for node, each in self._measurements.items()},
            failure,
            self._plan.name,
            self._plan.digest,
        )

    def _measure(self, number: int) -> None:
        measured = measure_clocks(self._plan, self._channel, self._clocks, number)
        for node, measurement in measured.items():
            self._measurements.setdefault(node, []).append(measurement)


@contextmanager
def failure_recorded(execution: Execution) -> Iterator[Recording | None]:
    """Return a context manager for the run of a node; with `--trace` it yields a recording.

    An exception within the context becomes the root cause of the run. The control node then
    writes the recorded part of the timeline. Other nodes do not wait for the file.
    """
    recording = None
    try:
        with root_cause_reported(execution):
            if execution.options.trace is not None:
                recording = Recording(execution)
            yield recording
    except BaseException as error:
        if recording is not None and execution.is_control:
            cause = error.cause if isinstance(error, Aborted) else error
            recording.write_after_failure(str(cause))
        raise
