"""Saves a run between two steps: its position, metrics, checkpoint and publication."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import structs

from placer.checkpoint.manifest import Progress, StepStatistics
from placer.errors import PlacerError
from placer.runtime.control.common_step import Action
from placer.runtime.control.divergence import LossWatch
from placer.runtime.control.events import RUNNING, SAVING, STILL_WRITING
from placer.runtime.control.execution import Execution
from placer.runtime.metrics.history import HistoryWriter
from placer.runtime.metrics.statistics import decode_statistics
from placer.runtime.metrics.stream import MetricsStream
from placer.runtime.saving.checkpoints import Checkpoints
from placer.runtime.saving.publications import Publications
from placer.runtime.saving.publishing import Publishing
from placer.runtime.saving.writing_thread import WritingThread
from placer.runtime.training_loop import asynchronous_tables
from placer.runtime.training_loop.asynchronous_tables import Drained
from placer.runtime.training_loop.early_stopping import Watches
from placer.runtime.training_loop.steps import Steps
from placer.runtime.training_loop.stream import PassesOfStream


@dataclass(slots=True)
class Saves:
    """Saves a run after a drain, when parameters do not change.

    Attributes:
        execution: the node's run.
        metrics: the stream of metrics of the node.
        history: the history of the run.
        watches: watches evaluation results.
        checkpoints: writes checkpoints; None if the run saves none.
        publications: writes publications; None if the run publishes none.
        thread: writes both; None if the run has neither.
        loss: watches the loss.
        steps: the steps of the run.
        stream: the passes of a stream; None for a source with fixed rows.
    """

    execution: Execution
    metrics: MetricsStream
    history: HistoryWriter
    watches: Watches
    checkpoints: Checkpoints | None
    publications: Publications | None
    thread: WritingThread | None
    loss: LossWatch
    steps: Steps
    stream: PassesOfStream | None = None

    def due(self, step: int) -> Action:
        """Return the saves that the spec schedules after a step."""
        action, ends_epoch = Action.NONE, self.steps.passes.ends(step)
        if self.checkpoints is not None and self.checkpoints.is_due(step, ends_epoch):
            action |= Action.SAVE
        if self.publications is not None and self.publications.is_due(
            step, ends_epoch=ends_epoch
        ):
            action |= Action.PUBLISH
        return action

    def request_in_time(self) -> None:
        """Request a save if an interval has passed on the control node's clock."""
        if not self.execution.is_control:
            return
        action = Action.NONE
        if self.checkpoints is not None and self.checkpoints.is_time():
            action |= Action.SAVE
        if self.publications is not None and self.publications.is_time():
            action |= Action.PUBLISH
        if action:
            self.execution.common_step.request(action)

    def wait(self) -> None:
        """Wait until the last checkpoint and publication are written, or have failed."""
        if self.thread is not None:
            self.thread.wait()

    def flush(self, step: int) -> None:
        """On the control node, wait until the metrics of a step are in the history."""
        if self.execution.plan.is_synchronous:
            self.metrics.flush()
        else:
            assert self.metrics.combiner is not None
            self.metrics.combiner.flush_to(step)

    def save(self, drained: Drained, action: Action, *, waits: bool = False) -> None:
        """Save the checkpoint and the publication of an action, if the run has them. A run that
        stops saves both, and its metrics. A publication `waits` for files that are being
        written if no step follows."""
        execution, stops = self.execution, bool(action & Action.STOP)
        checkpoints = self.checkpoints if action & (Action.SAVE | Action.STOP) else None
        # Take the position before the next barrier: after it, the slowest worker continues and the
        # metrics change.
        progress = self._progress(checkpoints, drained) if checkpoints else None
        if checkpoints is not None and self.stream is not None and self.stream.lanes:
            passes, step = self.steps.passes, drained.slowest
            lanes = self.stream.lanes.positions(passes, step)
            if progress is not None:
                assert progress.stream is not None
                position = structs.replace(progress.stream, lanes=lanes)
                progress = structs.replace(progress, stream=position)
        ahead: tuple[StepStatistics, ...] = ()
        if drained.is_uneven and (checkpoints is not None or stops):
            ahead = asynchronous_tables.gather_ahead(
                execution, self.metrics, drained, stops=stops
            )
        step, workers = drained.slowest, drained.steps
        reads = checkpoints is None or checkpoints.last == (step, workers)
        publishing = None
        if self.publications is not None and action & (Action.PUBLISH | Action.STOP):
            publishing = self.publications.publish(
                step,
                workers,
                self.steps.passes.place_of(step)[0],
                waits=stops or waits or not reads,
                is_discarded=self.loss.stops,
                reads=reads,
            )
        if checkpoints is not None:
            shared = publishing if not reads else None
            self._save(checkpoints, drained, progress, ahead, shared, stops=stops)
        if publishing is not None and reads:
            assert self.publications is not None
            self.publications.put(publishing)
        if stops and execution.is_control and ahead:
            self.flush(drained.slowest)
            self._add_parts(ahead)

    def save_untrained(self, progress: Progress, nothing: str) -> None:
        """Publish the position of a checkpoint, unless it is published. If sparse tables have
        forgotten keys (`--shrink`), save them there as well; raises PlacerError if the run saves
        no checkpoints."""
        is_control, shrinks = self.execution.is_control, self.execution.options.shrink
        publishing, publications = None, self.publications
        if publications is not None:
            publishing = publications.publish(
                progress.step,
                progress.workers,
                progress.epoch,
                waits=True,
                is_discarded=False,
                reads=True,
            )
        if publishing is not None and publications is not None:
            publications.put(publishing)
        if not shrinks:
            return
        if self.checkpoints is not None:
            position = progress if is_control else None
            if position is not None:
                published = publications.id if publications is not None else ""
                position = structs.replace(position, published=published)
            self.checkpoints.save(progress.step, progress.workers, position)
        elif is_control:
            raise PlacerError(
                f"'shrink' (--shrink) has no effect without checkpoints: {nothing}",
                hint="add 'checkpoint' (--checkpoint DIR) to save the tables there",
            )

    def _progress(self, checkpoints: Checkpoints, drained: Drained) -> Progress | None:
        """Return the position of the run after a drain. None if the checkpoint will be
        discarded, and on all nodes but the control node."""
        if not self.execution.is_control:
            return None
        start, step = time.perf_counter(), drained.slowest
        self.flush(step)
        progress = None
        if not self.loss.stops:
            batches = self.steps.passes.place_of(step)[1] + 1
            progress = structs.replace(
                self.watches.store(self.history.progress(batches)),
                workers=drained.steps,
                # The end of a command is not the end of a stream.
                is_end=self.stream is None and step == self.steps.total,
                stream=self.stream and self.stream.position,
            )
        checkpoints.seconds += time.perf_counter() - start
        return progress

    def _save(
        self,
        checkpoints: Checkpoints,
        drained: Drained,
        progress: Progress | None,
        ahead: tuple[StepStatistics, ...],
        publishing: Publishing | None,
        *,
        stops: bool,
    ) -> None:
        execution, start = self.execution, time.perf_counter()
        waits = checkpoints.thread.is_writing and not stops
        if stops:
            execution.report_state(SAVING)
        elif waits:
            execution.report_state(STILL_WRITING)
        step, workers, published = drained.slowest, drained.steps, ""
        if self.publications is not None and self.publications.last == (step, workers):
            published = self.publications.id
        if progress is not None:
            progress = structs.replace(progress, ahead=ahead, published=published)
        checkpoints.save(step, workers, progress, publishing)
        checkpoints.note_wait(time.perf_counter() - start)
        if waits:
            execution.report_state(RUNNING)

    def _add_parts(self, ahead: Sequence[StepStatistics]) -> None:
        """Add the metrics of steps that only some workers have finished to the epoch's metrics."""
        plan, counted = self.execution.plan, set()
        for each in ahead:
            batch, shard = self.steps.phase(each.step).rows, plan.pushed_rows(each.node)
            rows = shard.num_rows(batch, plan.settings.train.microbatches)
            if (each.step, shard) in counted:
                rows = 0  # its companion has the same rows
            counted.add((each.step, shard))
            statistics = decode_statistics(each.statistics)
            self.history.add_part(statistics, rows, batch)
