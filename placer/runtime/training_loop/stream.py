"""The passes of a stream: the control node announces each one, and all nodes open its rows.

All nodes meet at the end of a pass. The control node then announces the next pass, and the pass
after it if its files exist: the nodes open that one in the background. While the run waits for
files, the control node says so often enough that no deadline passes.

For a Python stream, all nodes also meet inside a pass when they have trained the last step whose
rows had arrived on all of them (`lanes.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import structs

from placer.channel.interface import Aborted, Key
from placer.checkpoint.manifest import Progress, StreamPosition
from placer.errors import DataError, PlacerError
from placer.place.layouts.partition import RowShard
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.sources import POSITION
from placer.plan.settings.data.stream_pass import StreamPass
from placer.plan.settings.data.window import Window
from placer.readers import PieceRows
from placer.readers.window_advice import advise
from placer.runtime.batches.batches import Batches
from placer.runtime.batches.opened_sources import batches_of_pass, open_pass
from placer.runtime.control.barrier import PASS, receive_json, send_json
from placer.runtime.control.events import NodeWarning, Notice, PassBegun
from placer.runtime.control.execution import Execution
from placer.runtime.control.failure import FinalError
from placer.runtime.saving.same_model import is_inside_pass
from placer.runtime.training_loop.arrivals import Arrivals
from placer.runtime.training_loop.chosen_passes import ChosenPasses
from placer.runtime.training_loop.lane_passes import (
    LANES_ENDED,
    PASSES_ENDED,
    LanePasses,
)
from placer.runtime.training_loop.lanes import Lanes
from placer.system.memory.limit import available_nbytes
from placer.system.owned_threads import END_LIMIT, OwnedThreads

if TYPE_CHECKING:
    from placer.tables.sparse.table import SparseTable

TOLD_EVERY: Final = 30.0
"""The longest time between two messages to nodes that wait, in seconds."""
CHECK: Final = 0.5
"""Seconds between checks for a stop while the run waits for a file."""
LONG_WAIT: Final = 30.0
"""Seconds of a wait for rows after which a run saves a checkpoint."""
SAVES_AGAIN: Final = 600.0
"""The shortest time between two such checkpoints, in seconds."""
MANY_LEFT_OUT: Final = 0.02
"""The share of rows that fill no batch above which the run warns."""


class Next(Enum):
    """The next thing that all nodes do at the end of a pass."""

    PASS = "pass"  # enter a pass
    STEPS = "steps"  # go on in the pass
    WAIT = "wait"  # wait for files or rows
    ACT = "act"  # take an action that a node has requested
    END = "end"  # end the run: no pass of this command can follow
    FAIL = "fail"  # end the run: the control node has an error


class Announcement(msgspec.Struct, frozen=True):
    """A message of the control node at the end of a pass.

    Attributes:
        next: the next thing that all nodes do.
        present: the pass to enter.
        first_step: its first step.
        is_last: whether it is the last pass of this command.
        following: the pass after it, if its files exist already.
        waited: the seconds that the run has waited for the files or rows.
        until: the last step whose rows have arrived, for a Python stream.
        last: the last step of the stream, if its function has ended; else 0.
        saves: whether all nodes save a checkpoint while they wait.
        why: why no pass of this command can follow, at its end.
    """

    next: Next
    present: StreamPass | None = None
    first_step: int = 1
    is_last: bool = False
    following: StreamPass | None = None
    waited: float = 0.0
    until: int = 0
    last: int = 0
    saves: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A pass that is opened in the background, before its first step."""

    stream_pass: StreamPass
    before: int
    batches: Future[Batches]


class PassesOfStream:
    """One node's view of the passes of a stream.

    Args:
        execution: the node's run.
        data: the source.
        batches: the batches without rows, whose observer those of the passes have.
        tables: the sparse tables of the node, which may forget rows at the end of a pass.
        progress: the position from which the run continues, if any.
        trained: a file that the run has trained before it became a stream.

    Attributes:
        tables: the same tables.
        begun: the number of passes of this command so far.
        ends_normally: on the control node, whether it is normal that no pass follows.
        problem: the error of the control node in choosing the next files or rows.
        lanes: the lanes of the node; None for a stream of files.
    """

    def __init__(
        self,
        execution: Execution,
        data: RowSource,
        batches: Batches,
        tables: Collection[SparseTable],
        progress: Progress | None,
        trained: str = "",
    ) -> None:
        self._execution, self._data, self._batches = execution, data, batches
        self._position = progress.stream if progress is not None else None
        self.tables = tables
        self.begun, self.ends_normally = 0, True
        self.problem: PlacerError | None = None
        self._present: StreamPass | None = None
        self._resumes_at = 0
        if progress is not None and is_inside_pass(progress, data.batch):
            assert progress.stream is not None
            self._present, self._resumes_at = progress.stream.current, progress.step
        self._messages = 0  # announcements so far
        self._warned = False
        self._lanes_go_on = True
        self._saved_at = -SAVES_AGAIN
        self._ahead: _Ahead | None = None
        self._is_closed = False
        self._threads = OwnedThreads()
        microbatches = execution.plan.settings.train.microbatches
        reads = execution.me.step.reads
        shards = [each.shard for each in reads if each.input != POSITION]
        self._reads: tuple[Sequence[RowShard], int] = shards, microbatches
        self._chosen: ChosenPasses | None = None
        self._counted: LanePasses | None = None
        self.lanes: Lanes | None = None
        number = 1 + (progress.epoch if progress is not None else 0)
        if data.stream is not None and data.stream.lanes is not None:
            is_inside = self._present is not None
            self.lanes = Lanes(execution, data, progress, is_inside=is_inside)
            if execution.is_control:
                present = self._present
                self._counted = LanePasses(execution, data, present, number)
        elif execution.is_control:
            self._chosen = ChosenPasses(
                execution, data, self.position, self._present, number, trained
            )
            if self.position is not None:
                self._position = self._chosen.start

    @property
    def position(self) -> StreamPosition | None:
        """The position in the stream; None before the first pass."""
        if self._position is None or self._chosen is None:
            return self._position
        return structs.replace(self._position, warned=self._chosen.warned)

    def begin(self) -> None:
        """Begin to read the lanes of a Python stream."""
        if self.lanes is not None:
            self.lanes.open(*self._reads)

    @property
    def resumes_inside(self) -> int:
        """The rows of the pass in which the run continues that are still to train; 0 unless it
        continues inside a pass."""
        if self._present is None or self.position is None:
            return 0
        done = self._resumes_at - self.position.first_step + 1
        whole = self._present.rows // self._data.batch
        return max(0, whole - done) * self._data.batch

    def announcements(self, step: int) -> Callable[[], Announcement]:
        """Return a function that returns the next announcement at the end of a pass. All nodes
        call it together, until the next pass or the end is announced. `step` is the last step.

        Asynchronous workers also call it inside a pass, when their lanes have ended or failed.
        """
        last = self._batches.last_step
        if self.lanes is not None and self.begun and step < last:
            return self._announcements_of_rows(self.lanes, step, last, enters=False)
        if self.lanes is not None:
            end = step + self._steps
            if self._present is not None and self.position is not None:
                end = self.position.first_step - 1 + self._steps
            end = min(end, self._execution.options.steps or end)
            return self._announcements_of_rows(self.lanes, step, end, enters=True)
        if self._chosen is None:
            return self._receive
        return partial(next, self._announce(self._chosen, step))

    def announcements_of_rows(self, step: int) -> Callable[[], Announcement] | None:
        """Return a function as that of `announcements`, inside a pass, when rows of the step after
        `step` may be missing on some node. None if they have arrived."""
        lanes = self.lanes
        if lanes is None or step < lanes.last_known:
            return None
        end = self._batches.last_step
        return self._announcements_of_rows(lanes, step, end, enters=False)

    def _announcements_of_rows(
        self, lanes: Lanes, step: int, end: int, *, enters: bool
    ) -> Callable[[], Announcement]:
        begun = time.monotonic()

        def announce() -> Announcement:
            arrivals = lanes.report(min(step + 1 + lanes.sends_ahead, end))
            if arrivals is None:
                announced = self._receive()
            else:
                waited = time.monotonic() - begun
                decided = self._decide(lanes, arrivals, step, end, waited)
                if decided.next is Next.WAIT:
                    lanes.warn_if_slow(begun, arrivals.slowest)
                if enters and self._counted is not None and self._counted.has_ended:
                    decided = Announcement(Next.END, why=PASSES_ENDED)
                if enters and decided.next is Next.STEPS:
                    decided = self._enter_next(decided, step, waited)
                announced = self._send(decided)
            if announced.next is Next.FAIL and self.problem is None:
                self.problem = lanes.problem
            lanes.last_known = max(lanes.last_known, announced.until)
            return announced

        return announce

    def _decide(
        self, lanes: Lanes, arrivals: Arrivals, step: int, end: int, waited: float
    ) -> Announcement:
        """Return the next thing to do after a step in a pass of a Python stream up to `end`, after
        a wait of some seconds."""
        execution = self._execution
        if execution.channel.aborted is not None:
            raise Aborted(execution.channel.aborted)
        if execution.common_step.is_pending:
            return Announcement(Next.ACT)
        if arrivals.has_failed:
            return Announcement(Next.FAIL)
        arrived = lanes.step_of(arrivals.batches)
        is_over = arrivals.have_ended and arrived < end
        until = min(arrived, end)
        if arrived < end and not is_over:
            until -= lanes.sends_ahead
        if is_over and self._lanes_go_on and until > lanes.step_of(0):
            self._lanes_go_on = False
            execution.report(Notice(LANES_ENDED))
        if until > step:
            return Announcement(Next.STEPS, until=until, last=until if is_over else 0)
        if is_over:
            return Announcement(Next.END, why=LANES_ENDED)
        if arrivals.error is not None:
            self.problem = arrivals.error
            return Announcement(Next.FAIL)
        now = time.monotonic()
        saves = waited >= LONG_WAIT and now > self._saved_at + SAVES_AGAIN
        if saves:
            self._saved_at = now
        return Announcement(Next.WAIT, saves=saves)

    def _enter_next(
        self, decided: Announcement, step: int, waited: float
    ) -> Announcement:
        """Return the announcement of the next pass of a Python stream."""
        counted = self._counted
        assert counted is not None
        present, first = counted.take(), step + 1
        if self._present is not None and self.position is not None:
            first = self.position.first_step
        is_last = counted.has_ended or decided.last > 0
        return structs.replace(
            decided,
            next=Next.PASS,
            present=present,
            first_step=first,
            is_last=is_last,
            waited=waited,
        )

    def _receive(self) -> Announcement:
        self._messages += 1
        control = self._execution.plan.control
        key = Key(PASS, self._messages)
        message = receive_json(self._execution.channel, control, key, dict)
        return msgspec.convert(message, Announcement)

    def _announce(self, chosen: ChosenPasses, step: int) -> Iterator[Announcement]:
        """Yield announcements, after they were sent to the other nodes."""
        execution, channel = self._execution, self._execution.channel
        every = min(TOLD_EVERY, execution.options.deadline / 3)
        begun = told = time.monotonic()
        is_waiting = False
        chosen.end()
        while True:
            if channel.aborted is not None:
                raise Aborted(channel.aborted)
            if execution.common_step.is_pending:
                yield self._send(Announcement(Next.ACT))
            try:
                present = chosen.take(CHECK)
            except PlacerError as error:
                self.problem = error
                yield self._send(Announcement(Next.FAIL))
                return
            now = time.monotonic()
            if present is not None:
                waited = now - begun if is_waiting else 0.0
                yield self._send(self._describe(chosen, present, step, waited))
                return
            if not chosen.is_looking and chosen.has_ended:
                why, self.ends_normally = chosen.why_no_pass()
                yield self._send(Announcement(Next.END, why=why))
                return
            if not is_waiting or now - told >= every:
                saves = not is_waiting
                is_waiting, told = True, now
                yield self._send(Announcement(Next.WAIT, saves=saves))
            if not chosen.is_looking:
                time.sleep(CHECK)

    def _describe(
        self, chosen: ChosenPasses, present: StreamPass, step: int, waited: float
    ) -> Announcement:
        first = step + 1
        if self._present is not None and self.position is not None:
            first = self.position.first_step
        following = chosen.peek()
        is_last = following is None and chosen.has_ended
        return Announcement(Next.PASS, present, first, is_last, following, waited)

    def _send(self, announcement: Announcement) -> Announcement:
        self._messages += 1
        message = msgspec.to_builtins(announcement)
        for node in self._execution.plan.nodes:
            if node.name != self._execution.me.name:
                send_json(
                    self._execution.channel,
                    node.name,
                    Key(PASS, self._messages),
                    message,
                )
        return announcement

    @property
    def _steps(self) -> int:
        """The number of steps of each pass of a Python stream."""
        assert self._data.stream is not None
        assert self._data.stream.rows is not None
        return self._data.stream.rows // self._data.batch

    def open(self, announced: Announcement) -> Batches:
        """Return the opened batches of an announced pass.

        Raises:
            DataError: if a file cannot be read, or differs from the announcement.
        """
        present, before = announced.present, announced.first_step - 1
        assert present is not None
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (ahead.stream_pass, ahead.before) == (present, before):
            return ahead.batches.result()
        done = self._resumes_at if self.lanes is None else self.lanes.done
        return self._open(present, before, max(before, done))

    def enter(self, announced: Announcement, batches: Batches) -> None:
        """Note that all nodes have opened a pass, and begin to open the following one."""
        present = announced.present
        assert present is not None
        execution = self._execution
        execution.shared_rows.forget_passes(present.number)
        self._batches.close()
        self._batches = batches
        left_out = present.rows % self._data.batch
        is_begun = self._present is not None  # by an earlier command
        self._present, self._resumes_at = None, 0
        self.begun += 1
        if execution.is_control:
            if not is_begun:
                before = self._position
                if self._chosen is not None:
                    before = before or self._chosen.start
                self._position = _moved(before, announced, left_out)
            self._warn()
            if self.begun == 1:
                self._advise(batches)
            execution.report(
                PassBegun(
                    present.number,
                    announced.first_step,
                    present.rows // self._data.batch,
                    tuple(file.path for file in present.files),
                    present.rows - left_out,
                    left_out,
                    round(announced.waited, 3),
                    announced.is_last or batches.last_step == execution.options.steps,
                    self.position.last if self.position is not None else "",
                )
            )
        if self._chosen is not None and not announced.is_last:
            self._chosen.begin_ahead()
        end = announced.first_step - 1 + batches.order.steps_per_epoch
        if announced.following is not None and batches.last_step == end:
            self._open_ahead(announced.following, end)

    def explain(self, error: Exception) -> Exception:
        """Return the error of `open`, with the ways to go on."""
        if not isinstance(error, PlacerError) or isinstance(error, Aborted):
            return error
        if self.lanes is None and (left := self.resumes_inside):
            error.hint = (
                "put the file back, resume from a checkpoint before this pass, or add"
                f" --skip-pass to go on with the next pass: it leaves out {left:,} rows"
            )
        is_of_user = self.lanes is not None and not isinstance(error, DataError)
        if is_of_user or not self._execution.options.restarts:
            return error
        # Another attempt would find the same.
        return FinalError(error.message, hint=error.hint)

    def close(self) -> None:
        """End the threads that read."""
        self._is_closed = True
        if self.lanes is not None:  # the other threads may wait for lanes
            self.lanes.close()
        if self._chosen is not None:
            self._chosen.close()
        self._threads.join(END_LIMIT)
        opened = self._ahead.batches if self._ahead is not None else None
        if opened is not None and opened.done() and opened.exception() is None:
            opened.result().close()
        self._batches.close()

    def _open(self, stream_pass: StreamPass, before: int, done: int) -> Batches:
        """Open a pass after step `before`, and begin to read the batches after step `done`."""
        if self.lanes is None:
            batches = open_pass(self._execution, self._data, stream_pass, before)
        else:
            rows = self.lanes.rows
            batches = batches_of_pass(
                self._execution, self._data, stream_pass, before, rows
            )
            self.lanes.skip_trained(batches.passes)
        batches = batches.watched(self._batches.watch)
        batches.begin(done, *self._reads)
        return batches

    def _open_ahead(self, stream_pass: StreamPass, before: int) -> None:
        opened: Future[Batches] = Future()

        def run() -> None:
            try:
                batches = self._open(stream_pass, before, before)
                if self._is_closed:
                    batches.close()
                opened.set_result(batches)
            except BaseException as error:
                opened.set_exception(error)

        self._ahead = _Ahead(stream_pass, before, opened)
        self._threads.begin(run, f"placer next pass of {self._execution.me.name}")

    def _advise(self, batches: Batches) -> None:
        """Warn of a window that reads many rows of a pass again."""
        rows, window = batches.rows, self._data.shuffle
        if not isinstance(rows, PieceRows) or not isinstance(window, Window):
            return
        if advice := advise(rows, window, available_nbytes(), "pass"):
            self._execution.report(NodeWarning(advice))

    def _warn(self) -> None:
        """Warn once of many rows that fill no batch."""
        position = self.position
        assert position is not None
        rows, left_out = position.rows, position.left_out
        if self._warned or left_out <= MANY_LEFT_OUT * rows:
            return
        self._warned = True
        self._execution.report(
            NodeWarning(
                f"{left_out:,} of {rows:,} rows fill no batch at the end of their pass, and are"
                f" not trained: write larger files, or train more files in a pass"
                " (data.train.stream)"
            )
        )


def _moved(
    before: StreamPosition | None,
    announced: Announcement,
    left_out: int,
) -> StreamPosition:
    """Return the position after a pass has begun; `before` is None before the first one."""
    present = announced.present
    assert present is not None
    before = before or StreamPosition(present, 0, {}, "", 0, 0)
    sizes = {file.path: file.size for file in present.files}
    return StreamPosition(
        present,
        announced.first_step,
        {**before.trained, **sizes},
        before.last if present.is_late or not present.files else present.files[-1].path,
        before.rows + present.rows,
        before.left_out + left_out,
        before.warned,
    )
