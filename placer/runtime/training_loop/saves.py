"""Saves a run between two steps: its position, metrics and checkpoint."""

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
        loss: watches the loss.
        steps: the steps of the run.
        stream: the passes of a stream; None for a source with fixed rows.
    """

    execution: Execution
    metrics: MetricsStream
    history: HistoryWriter
    watches: Watches
    checkpoints: Checkpoints | None
    loss: LossWatch
    steps: Steps
    stream: PassesOfStream | None = None

    def is_due(self, step: int) -> bool:
        """Whether the spec schedules a checkpoint after a step."""
        checkpoints = self.checkpoints
        ends_epoch = self.steps.passes.ends(step)
        return checkpoints is not None and checkpoints.is_due(step, ends_epoch)

    def request_in_time(self) -> None:
        """Request a checkpoint if the interval has passed on the control node's clock."""
        checkpoints = self.checkpoints
        if checkpoints is None or not self.execution.is_control:
            return
        if checkpoints.is_time():
            self.execution.common_step.request(Action.SAVE)

    def flush(self, step: int) -> None:
        """On the control node, wait until the metrics of a step are in the history."""
        if self.execution.plan.is_synchronous:
            self.metrics.flush()
        else:
            assert self.metrics.combiner is not None
            self.metrics.combiner.flush_to(step)

    def save(self, drained: Drained, *, stops: bool) -> None:
        """Save a checkpoint if the run saves any, and the metrics of a run that stops."""
        checkpoints, execution = self.checkpoints, self.execution
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
        if checkpoints is not None:
            self._save(checkpoints, drained, progress, ahead, stops=stops)
        if stops and execution.is_control and ahead:
            self.flush(drained.slowest)
            self._add_parts(ahead)

    def save_shrunk(self, progress: Progress, nothing: str) -> None:
        """Save sparse tables after they have forgotten keys, at their checkpoint's
        position. Raises PlacerError if the run saves no checkpoints."""
        is_control = self.execution.is_control
        if self.checkpoints is not None:
            position = progress if is_control else None
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
        *,
        stops: bool,
    ) -> None:
        execution, start = self.execution, time.perf_counter()
        waits = checkpoints.is_writing and not stops
        if stops:
            execution.report_state(SAVING)
        elif waits:
            execution.report_state(STILL_WRITING)
        if progress is not None:
            progress = structs.replace(progress, ahead=ahead)
        checkpoints.save(drained.slowest, drained.steps, progress)
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
