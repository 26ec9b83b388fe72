"""The loop over the steps of a run, with the evaluations and checkpoints between them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from msgspec import structs

from placer.channel.interface import Aborted, Key
from placer.checkpoint.manifest import Progress, StepStatistics
from placer.errors import PlacerError
from placer.runtime.control.barrier import (
    EVALUATION,
    STEP,
    STOPPED,
    VERDICT,
    barrier,
    receive_json,
    send_json,
)
from placer.runtime.control.common_step import Action
from placer.runtime.control.divergence import LossWatch
from placer.runtime.control.events import (
    SAVING,
    STILL_WRITING,
    WAITING,
    NodeWarning,
    Notice,
    Start,
)
from placer.runtime.control.execution import Execution
from placer.runtime.metrics.combiner import Phase
from placer.runtime.metrics.history import HistoryWriter
from placer.runtime.metrics.statistics import decode_statistics
from placer.runtime.metrics.stream import MetricsStream
from placer.runtime.node.node import Node
from placer.runtime.node.program_file import Hook
from placer.runtime.saving.checkpoints import Checkpoints
from placer.runtime.timeline.recording import Recording
from placer.runtime.training_loop import asynchronous_tables
from placer.runtime.training_loop.asynchronous_tables import Drained
from placer.runtime.training_loop.early_stopping import Watches


def count_steps(execution: Execution, node: Node) -> int:
    """Return the number of the last step of a run."""
    if execution.options.steps is not None:
        return execution.options.steps
    return execution.plan.settings.train.epochs * node.training.order.steps_per_epoch


@dataclass(slots=True)
class Training:
    """The steps of one node.

    Attributes:
        execution: the node's run.
        node: the node as its program sees it.
        metrics: receives the metrics of steps and evaluations.
        history: the history, on the control node.
        watches: what follows from evaluations.
        checkpoints: the checkpoints of the run, if it saves any.
        loss: the minimized loss, on the control node.
        recording: the node's part in the timeline of the run, if there is one.
        step, evaluate: the hooks of the program.
    """

    execution: Execution
    node: Node
    metrics: MetricsStream
    history: HistoryWriter
    watches: Watches
    checkpoints: Checkpoints | None
    loss: LossWatch
    recording: Recording | None
    step: Hook
    evaluate: Hook | None
    _resumed_step: int = 0  # after which the run has begun
    _drained_step: int = -1
    _ended_step: int = 0
    _begun_step: int = 0  # whose metrics have begun
    _open: Phase | None = None

    def run(self, progress: Progress | None) -> None:
        """Run the steps after the position of a checkpoint, or all steps.

        Raises `Aborted` once the run has failed.
        """
        self.node.last_step = self.total_steps
        with self.execution.pace or nullcontext():
            self._run(progress)
        self.node.discard_sent_back()

    def _run(self, progress: Progress | None) -> None:
        first = 1 + (progress.step if progress is not None else 0)
        self._ended_step = self._resumed_step = first - 1
        done = self._take_over(progress) if progress is not None else 0
        self._begun_step = done
        total = self.total_steps
        if why := self._why_nothing_is_left(first - 1, total):
            nothing = f"nothing is left to train after step {first - 1}: {why}"
            self._warn(nothing)
            if self.execution.options.shrink and progress is not None:
                self._save_shrunk(progress, nothing)
            return
        self._report_start(first, total)
        self.execution.report_state("running")
        self.execution.common_step.first = done + 1
        # Where the run was stopped, others had not done this step.
        if done >= first and self._is_due(done) and self._meet(done):
            return
        while not self._agree(done):
            if self._skips(done + 1) or self._run_step(done + 1):
                done += 1
                if self._is_due(done) and self._meet(done):
                    return
                while self.node.drains_next(done):
                    if self._drain_and_act(done):
                        return
            elif self._drain_and_act(done):  # a server, before its next step
                return

    def _agree(self, done: int) -> bool:
        """Act after a step if that is requested; return whether the run stops. The next
        step waits for callbacks that are slow."""
        self._keep_pace(done)
        if self.execution.channel.aborted is not None:
            raise Aborted(self.execution.channel.aborted)
        self._request_in_time()
        while action := self._next_action(done):
            if self._drain_and_act(done, action):
                return True
        return False

    def _keep_pace(self, done: int) -> None:
        """Wait for callbacks after a step."""
        execution, pace = self.execution, self.execution.pace
        if pace is None:
            return
        steps = done - self._resumed_step
        if pace.is_ahead(steps):
            execution.state = WAITING  # it is reported from time to time
            pace.wait(
                steps,
                lambda: (
                    execution.common_step.is_pending
                    or execution.channel.aborted is not None
                ),
                limit=execution.options.deadline / 2,
            )
            execution.state = "running"

    def _meet(self, done: int) -> bool:
        """Wait until all nodes have done a step, and do what the spec fixes to do after
        it; return whether the run stops."""
        # Without lockstep others may drain before this step, to save or to stop.
        while self._ended_step < done:
            if self._drain_and_act(done):
                return True
        return False

    def _drain_and_act(self, done: int, action: Action = Action.NONE) -> bool:
        """Drain, and do what the spec fixes to do after the step that all workers have
        done, unless that has been done. Then act, as this node knows, or as others do;
        return whether the run stops."""
        drained = self._drain(done, acts=bool(action))
        if self.node.service is not None:
            self._end_steps(drained.slowest)
        is_requested = bool(action) or drained.acts
        fixed = Action.NONE if drained.is_uneven else self._end_step(drained.slowest)
        if drained.acts and not action:
            action = self._next_action(done, drained=True)
        return self._act(drained, action | fixed, is_fixed=not is_requested)

    def _take_over(self, progress: Progress) -> int:
        """Continue from the position of a checkpoint; return this node's last step.

        Without lockstep each worker has its own, if they are the same workers.
        """
        plan, me = self.execution.plan, self.execution.me.name
        steps = asynchronous_tables.steps_of_workers(plan, progress)
        self.node.resume(progress.step, steps)
        done = steps.get(me, progress.step)
        if dict(progress.workers) == steps:
            self.metrics.take_over(progress.ahead, done, self._phase)
        return done

    def _phase(self, step: int) -> Phase:
        """Return what the metrics of a step belong to."""
        epoch, index = divmod(step - 1, self._steps_per_epoch)
        rows = self.node.training.batch_size(index)
        return Phase(STEP, step, epoch + 1, rows, self._is_evaluated(step))

    def _why_nothing_is_left(self, done: int, total: int) -> str:
        """Return why a run that continues after a step has no other, or nothing."""
        if done == total:
            return "it was the last step; --steps or train.epochs sets a later one"
        if self.watches.is_exhausted:
            return "train.early_stopping has ended the run there"
        return ""

    def _warn(self, message: str) -> None:
        if self.execution.is_control:
            self.execution.report(NodeWarning(message))

    @property
    def total_steps(self) -> int:
        """The number of the last step."""
        return count_steps(self.execution, self.node)

    @property
    def _steps_per_epoch(self) -> int:
        return self.node.training.order.steps_per_epoch

    @property
    def _evaluation_every(self) -> int:
        """After how many steps an evaluation follows."""
        every = self.execution.plan.settings.train.eval.interval
        return self._steps_per_epoch if every.unit == "epochs" else int(every.number)

    def _report_start(self, first: int, last: int) -> None:
        """Report the steps that the run is about to train."""
        if not self.execution.is_control:
            return
        evaluating = self.node.evaluating if self.evaluate else None
        self.execution.report(
            Start(
                first_step=first,
                last_step=last,
                steps_per_epoch=self._steps_per_epoch,
                evaluation_every=self._evaluation_every if evaluating else 0,
                rows=self.node.training.order.batch,
                evaluation_rows=evaluating.epoch_rows if evaluating else 0,
            )
        )

    def _next_action(self, done: int, *, drained: bool = False) -> Action:
        """Return what all nodes do after step `done`, once they have agreed on it."""
        start = time.perf_counter()
        action = self.execution.common_step.next_action(done, drained=drained)
        if self.checkpoints is not None:
            self.checkpoints.seconds += time.perf_counter() - start
        return action

    def _skips(self, number: int) -> bool:
        """Whether this node has no part in a step, which is over already."""
        start = time.perf_counter()
        joins = self.node.joins(number)
        self._end_metrics()
        if not joins:
            self.execution.step = number
            phase = self._phase(number)
            self.execution.timing.add(time.perf_counter() - start, phase.rows)
            self.metrics.end(phase, counts=False)
        return not joins

    def _end_metrics(self) -> None:
        """Pass on the metrics of the last step, once it is known whether they count."""
        if self._open is not None:
            self.metrics.end(self._open, counts=self.node.is_taken)
            self._open = None

    def _end_steps(self, step: int) -> None:
        """End the metrics of the steps up to one that all workers have done, and that
        this server may not have come to."""
        for number in range(self._begun_step + 1, step + 1):
            self.metrics.end(self._phase(number))
        self._begun_step = max(self._begun_step, step)

    def _run_step(self, number: int) -> bool:
        """Run a step; return whether it is done. Without lockstep, that of a server is
        not if all workers have drained before it."""
        execution, node = self.execution, self.node
        epoch, index = divmod(number - 1, self._steps_per_epoch)
        if self.recording is not None:
            self.recording.enter(number)
        start = time.perf_counter()
        node.enter_step(number, epoch + 1, index)
        execution.step = number
        self.step(node)
        node.end_step()
        execution.timing.add(time.perf_counter() - start, node.count)
        if node.is_short:
            return False
        if number > self._begun_step:  # else its metrics have ended at a drain
            self._open, self._begun_step = self._phase(number), number
        if node.newest is None:
            self._end_metrics()
        self.metrics.forget(node.horizon)
        return True

    def _is_evaluated(self, step: int) -> bool:
        """Whether an evaluation follows a step."""
        is_due = step % self._evaluation_every == 0
        return self.evaluate is not None and (is_due or step == self.total_steps)

    def _is_due(self, step: int) -> bool:
        """Whether all nodes meet after a step: it ends an epoch or the run, or an
        evaluation or a checkpoint follows."""
        checkpoints = self.checkpoints
        return (
            step == self.total_steps
            or self._is_evaluated(step)
            or self._ends_epoch(step)
            or (checkpoints is not None and checkpoints.is_due(step, ends_epoch=False))
        )

    def _ends_epoch(self, step: int) -> bool:
        return step % self._steps_per_epoch == 0

    def _end_step(self, number: int) -> Action:
        """Evaluate after a step that all workers have done, if that is due; return what
        the spec fixes to do after it, the first time."""
        execution, node, checkpoints = self.execution, self.node, self.checkpoints
        action = Action.NONE
        if number <= self._ended_step:
            return action
        self._ended_step = number
        if self._is_evaluated(number):
            assert self.evaluate is not None
            assert node.evaluating is not None
            execution.report_state("evaluating")
            node.enter_evaluation(number)
            self.evaluate(node)
            rows = node.evaluating.epoch_rows
            self.metrics.end(Phase(EVALUATION, number, 0, rows))
            execution.report_state("running")
            action = self._verdict(number, number % self._evaluation_every == 0)
        ends_epoch = self._ends_epoch(number)
        if checkpoints is not None and checkpoints.is_due(number, ends_epoch):
            action |= Action.SAVE
        if number == self.total_steps:
            action |= Action.SAVE | Action.STOP
        return action

    def _drain(self, done: int, *, acts: bool = False) -> Drained:
        """Drain: after that all that nodes have computed is applied. Without lockstep,
        wait for all nodes; `acts` says that this node knows of an action."""
        ends = done == self.total_steps
        if not self.execution.plan.in_lockstep:
            self.node.drain(done, ends=ends)
            drained = asynchronous_tables.meet(self.execution, done, acts=acts)
            self.metrics.forget(drained.slowest)
            return drained
        if self._drained_step != done:
            self._drained_step = done
            self.node.drain(done, ends=ends)
            self._end_metrics()
        return Drained(done)

    def _verdict(self, step: int, is_due: bool) -> Action:
        """Return what follows from an evaluation, which the control node decides before
        any node begins the next step."""
        if not self.watches:
            return Action.NONE
        plan, channel = self.execution.plan, self.execution.channel
        key = Key(VERDICT, step)
        if not self.execution.is_control:
            return Action(receive_json(channel, plan.control, key, int))
        self._flush(step)
        action = self.watches.add(step, self.history.eval, is_due=is_due)
        stopping = self.watches.stopping
        if action & Action.STOP and stopping is not None and stopping.found is not None:
            best = stopping.found
            self.execution.report(
                Notice(
                    f"train.early_stopping ends the run after step {step}: the best"
                    f" {best.metric} was {best.value:.4g}, after step {best.step}"
                )
            )
        for node in plan.nodes:
            if node.name != plan.control:
                send_json(channel, node.name, key, action)
        return action

    def _request_in_time(self) -> None:
        """Request a checkpoint if the interval of time has passed, by the control
        node's clock."""
        checkpoints = self.checkpoints
        if checkpoints is None or not self.execution.is_control:
            return
        if checkpoints.is_time():
            self.execution.common_step.request(Action.SAVE)

    def _flush(self, step: int) -> None:
        """Wait on the control node until the metrics of a step are in the history."""
        if self.execution.plan.in_lockstep:
            self.metrics.flush()
        else:
            assert self.metrics.combiner is not None
            self.metrics.combiner.flush_to(step)

    def _act(self, drained: Drained, action: Action, *, is_fixed: bool = False) -> bool:
        """Save a checkpoint, and stop the run, if the action says so; return whether it
        stops. When the run stops, a checkpoint is saved too. An action that `is_fixed`
        by the spec follows the same step on all nodes."""
        if not action:
            return False
        checkpoints, execution = self.checkpoints, self.execution
        stops = bool(action & Action.STOP)
        if stops and not is_fixed:
            # A node that saves has no limit of time for this step any more, so that all
            # must have ended it.
            barrier(execution.plan, execution.channel, {}, STOPPED)
        # Before the next barrier: after it the slowest worker goes on, and so do the metrics.
        progress = self._progress(checkpoints, drained) if checkpoints else None
        ahead: tuple[StepStatistics, ...] = ()
        if drained.is_uneven and (checkpoints is not None or stops):
            ahead = asynchronous_tables.gather_ahead(
                execution, self.metrics, drained, stops=stops
            )
        if checkpoints is not None:
            self._save(checkpoints, drained.slowest, progress, ahead, stops=stops)
        if stops and execution.is_control and ahead:
            self._flush(drained.slowest)
            self._add_parts(ahead)
        return stops

    def _progress(self, checkpoints: Checkpoints, drained: Drained) -> Progress | None:
        """Return the position of the run after a drain; None for a checkpoint that is
        discarded, and on all nodes but the control node."""
        if not self.execution.is_control:
            return None
        start, step = time.perf_counter(), drained.slowest
        self._flush(step)
        progress = None
        if not self.loss.stops:
            batches = (step - 1) % self._steps_per_epoch + 1
            progress = structs.replace(
                self.watches.store(self.history.progress(batches)),
                workers=drained.steps,
                is_end=step == self.total_steps,
            )
        checkpoints.seconds += time.perf_counter() - start
        return progress

    def _save(
        self,
        checkpoints: Checkpoints,
        step: int,
        progress: Progress | None,
        ahead: tuple[StepStatistics, ...],
        *,
        stops: bool,
    ) -> None:
        """Save a checkpoint after a drain."""
        execution, start = self.execution, time.perf_counter()
        waits = checkpoints.is_writing and not stops
        if stops:
            execution.report_state(SAVING)
        elif waits:
            execution.report_state(STILL_WRITING)
        if progress is not None:
            progress = structs.replace(progress, ahead=ahead)
        checkpoints.save(step, progress)
        checkpoints.seconds += time.perf_counter() - start
        if waits:
            execution.report_state("running")

    def _save_shrunk(self, progress: Progress, nothing: str) -> None:
        """Save sparse tables that have forgotten keys, at the position of the checkpoint
        that they are from. Raises PlacerError if the run saves no checkpoints."""
        is_control = self.execution.is_control
        if self.checkpoints is not None:
            self.checkpoints.save(progress.step, progress if is_control else None)
        elif is_control:
            raise PlacerError(
                f"'shrink' (--shrink) has no effect without checkpoints: {nothing}",
                hint="add --checkpoint DIR, to which the tables are saved",
            )

    def _add_parts(self, ahead: Sequence[StepStatistics]) -> None:
        """Add the metrics of steps that not all workers have done to those of the
        epoch."""
        plan, counted = self.execution.plan, set()
        for each in ahead:
            batch, shard = self._phase(each.step).rows, plan.pushed_rows(each.node)
            rows = shard.num_rows(batch, plan.settings.train.microbatches)
            if (each.step, shard) in counted:
                rows = 0  # those of its companion
            counted.add((each.step, shard))
            statistics = decode_statistics(each.statistics)
            self.history.add_part(statistics, rows, batch)
