"""The passes of a stream: the control node announces each one, and all nodes open its files.

All nodes meet at the end of a pass. The control node then announces the next pass, and the pass
after it if its files exist: the nodes open that one in the background. While the run waits for
files, the control node says so often enough that no deadline passes.
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

from placer.channel.interface import Aborted, Key
from placer.checkpoint.manifest import Progress, StreamPosition
from placer.errors import PlacerError
from placer.place.layouts.partition import RowShard
from placer.plan.settings.data.source import RowSource
from placer.plan.settings.data.sources import POSITION
from placer.plan.settings.data.stream_pass import StreamPass
from placer.runtime.batches.batches import Batches
from placer.runtime.batches.opened_sources import open_pass
from placer.runtime.control.barrier import PASS, receive_json, send_json
from placer.runtime.control.events import NodeWarning, PassBegun
from placer.runtime.control.execution import Execution
from placer.runtime.control.failure import FinalError
from placer.runtime.saving.same_model import is_inside_pass
from placer.runtime.training_loop.chosen_passes import ChosenPasses
from placer.system.owned_threads import END_LIMIT, OwnedThreads

if TYPE_CHECKING:
    from placer.tables.sparse.table import SparseTable

TOLD_EVERY: Final = 30.0
"""The longest time between two messages to nodes that wait, in seconds."""
CHECK: Final = 0.5
"""Seconds between checks for a stop while the run waits for a file."""
MANY_LEFT_OUT: Final = 0.02
"""The share of rows that fill no batch above which the run warns."""


class Next(Enum):
    """The next thing that all nodes do at the end of a pass."""

    PASS = "pass"  # enter a pass
    WAIT = "wait"  # wait for files
    ACT = "act"  # take an action that a node has requested
    END = "end"  # end the run: no pass of this command can follow
    FAIL = "fail"  # end the run: the control node cannot read the next files


class Announcement(msgspec.Struct, frozen=True):
    """A message of the control node at the end of a pass.

    Attributes:
        next: the next thing that all nodes do.
        present: the pass to enter.
        first_step: its first step.
        is_last: whether it is the last pass of this command.
        following: the pass after it, if its files exist already.
        waited: the seconds that the run has waited for the files.
    """

    next: Next
    present: StreamPass | None = None
    first_step: int = 1
    is_last: bool = False
    following: StreamPass | None = None
    waited: float = 0.0


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
        position: the position in the stream; None before the first pass.
        begun: the number of passes of this command so far.
        problem: the error of the control node in choosing the next files.
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
        self.position = progress.stream if progress is not None else None
        self.tables = tables
        self.begun = 0
        self.problem: PlacerError | None = None
        self._present: StreamPass | None = None
        self._resumes_at = 0
        if progress is not None and is_inside_pass(progress, data.batch):
            assert progress.stream is not None
            self._present, self._resumes_at = progress.stream.current, progress.step
        self._messages = 0  # announcements so far
        self._warned = False
        self._ahead: _Ahead | None = None
        self._is_closed = False
        self._threads = OwnedThreads()
        self._looking = OwnedThreads()  # the thread that chooses passes ahead
        microbatches = execution.plan.settings.train.microbatches
        reads = execution.me.step.reads
        shards = [each.shard for each in reads if each.input != POSITION]
        self._reads: tuple[Sequence[RowShard], int] = shards, microbatches
        self._chosen: ChosenPasses | None = None
        if execution.is_control:
            number = 1 + (progress.epoch if progress is not None else 0)
            self._chosen = ChosenPasses(
                execution, data, self.position, self._present, number, trained
            )

    @property
    def resumes_inside(self) -> int:
        """The rows of the pass in which the run continues that are still to train; 0 unless it
        continues inside a pass."""
        if self._present is None or self.position is None:
            return 0
        done = self._resumes_at - self.position.first_step + 1
        whole = self._present.rows // self._data.batch
        return max(0, whole - done) * self._data.batch

    def why_no_pass(self) -> str:
        """Return why no pass follows; the control node knows."""
        if self._chosen is None:
            return "the control node has said so"
        return self._chosen.why_no_pass()

    def announcements(self, step: int) -> Callable[[], Announcement]:
        """Return a function that returns the next announcement at the end of a pass. All nodes
        call it together, until the next pass or the end is announced. `step` is the last step.
        """
        if self._chosen is None:
            return self._receive
        return partial(next, self._announce(self._chosen, step))

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
        self._looking.join()
        self._looking.check()
        begun = time.monotonic()
        look = told = begun
        is_waiting = False
        while True:
            if channel.aborted is not None:
                raise Aborted(channel.aborted)
            now = time.monotonic()
            if execution.common_step.is_pending:
                yield self._send(Announcement(Next.ACT))
            elif now >= look:
                waited = now - begun if is_waiting else 0.0
                try:
                    present = chosen.take()
                except PlacerError as error:
                    self.problem = error
                    yield self._send(Announcement(Next.FAIL))
                    return
                if present is not None:
                    yield self._send(self._describe(chosen, present, step, waited))
                    return
                if chosen.has_ended:
                    yield self._send(Announcement(Next.END))
                    return
                look = time.monotonic() + chosen.pause
            if not is_waiting or now - told >= every:
                is_waiting, told = True, now
                yield self._send(Announcement(Next.WAIT))
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
        return self._open(present, before, max(before, self._resumes_at))

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
                assert self._chosen is not None
                self.position = _moved(self.position, self._chosen, announced, left_out)
            self._warn()
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
                )
            )
        if self._chosen is not None and not announced.is_last:
            name = "placer next files of the stream"
            self._looking.begin(self._chosen.look_ahead, name)
        end = announced.first_step - 1 + batches.order.steps_per_epoch
        if announced.following is not None and batches.last_step == end:
            self._open_ahead(announced.following, end)

    def explain(self, error: Exception) -> Exception:
        """Return the error of `open`, with the ways to go on."""
        if not isinstance(error, PlacerError) or isinstance(error, Aborted):
            return error
        if left := self.resumes_inside:
            error.hint = (
                "put the file back, resume from a checkpoint before this pass, or add"
                f" --skip-pass to go on with the next pass: it leaves out {left:,} rows"
            )
        if not self._execution.options.restarts:
            return error
        # Another attempt would find the same.
        return FinalError(error.message, hint=error.hint)

    def close(self) -> None:
        """End the threads that read."""
        self._is_closed = True
        for threads in (self._threads, self._looking):
            threads.join(END_LIMIT)
        opened = self._ahead.batches if self._ahead is not None else None
        if opened is not None and opened.done() and opened.exception() is None:
            opened.result().close()
        self._batches.close()

    def _open(self, stream_pass: StreamPass, before: int, done: int) -> Batches:
        """Open a pass after step `before`, and begin to read the batches after step `done`."""
        batches = open_pass(self._execution, self._data, stream_pass, before)
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
    position: StreamPosition | None,
    chosen: ChosenPasses,
    announced: Announcement,
    left_out: int,
) -> StreamPosition:
    """Return the position after a pass has begun."""
    present, before = announced.present, position or chosen
    assert present is not None
    sizes = {file.path: file.size for file in present.files}
    return StreamPosition(
        present,
        announced.first_step,
        {**before.trained, **sizes},
        before.last if present.is_late else present.files[-1].path,
        (position.rows if position is not None else 0) + present.rows,
        (position.left_out if position is not None else 0) + left_out,
        chosen.warned,
    )
