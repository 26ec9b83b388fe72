"""The loop over the steps of a run, with the evaluations and checkpoints between them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs

from placer.channel.protocol import Aborted, Key
from placer.checkpoint.manifest import Progress
from placer.runtime.metrics.evaluation_watch import EvaluationWatch
from placer.runtime.metrics.history import HistoryWriter
from placer.runtime.metrics.stream import MetricsStream
from placer.runtime.program.load import Hook
from placer.runtime.program.node import Node
from placer.runtime.run.barrier import (
    STOPPED,
    VERDICT,
    barrier,
    receive_json,
    send_json,
)
from placer.runtime.run.checkpoints import Checkpoints
from placer.runtime.run.common_step import Action
from placer.runtime.run.divergence import LossWatch
from placer.runtime.run.events import SAVING, STILL_WRITING, NodeWarning, Start
from placer.runtime.run.state import Execution


@dataclass(frozen=True, slots=True)
class Watches:
    """What follows from the evaluations of a run.

    Attributes:
        best: the evaluation for `train.checkpoint.best`, if there is one.
        stopping: that for `train.early_stopping`.
    """

    best: EvaluationWatch | None = None
    stopping: EvaluationWatch | None = None

    def __bool__(self) -> bool:
        return self.best is not None or self.stopping is not None

    def restore(self, progress: Progress) -> None:
        """Continue from the position of a checkpoint."""
        if self.best is not None:
            self.best.restore(progress.best)
        if self.stopping is not None:
            self.stopping.restore(progress.stopping)

    def store(self, progress: Progress) -> Progress:
        """Return the position with the best evaluations so far."""
        return structs.replace(
            progress,
            best=self.best and self.best.found,
            stopping=self.stopping and self.stopping.found,
        )

    def add(self, step: int, metrics: Mapping[str, float], *, is_due: bool) -> Action:
        """Add the evaluation after a step; return what follows from it.

        An evaluation that is made only because the run ends does not count for
        `train.early_stopping`: a run that continues later stops where it would have
        stopped without the break.
        """
        if self.best is not None:
            self.best.add(step, metrics)
        if self.stopping is not None and is_due:
            self.stopping.add(step, metrics)
        action = Action.NONE
        if self.best is not None and self.best.is_best(step):
            action |= Action.SAVE
        if self.is_exhausted:
            action |= Action.STOP
        return action

    @property
    def is_exhausted(self) -> bool:
        """Whether early stopping ends the run."""
        return self.stopping is not None and self.stopping.is_exhausted


def make_watches(execution: Execution) -> Watches:
    """Return the watches of a run."""
    settings = execution.checkpointing
    best = settings.best if settings is not None else None
    stop = execution.plan.early_stopping
    return Watches(
        None if best is None else EvaluationWatch(best),
        None if stop is None
        else EvaluationWatch(stop.best, stop.patience, stop.min_delta),
    )  # fmt: skip


def count_steps(execution: Execution, node: Node) -> int:
    """Return the number of the last step of a run."""
    if execution.options.steps is not None:
        return execution.options.steps
    return execution.plan.epochs * node.training.order.steps_per_epoch


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
        step, evaluate: the hooks of the program.
    """

    execution: Execution
    node: Node
    metrics: MetricsStream
    history: HistoryWriter
    watches: Watches
    checkpoints: Checkpoints | None
    loss: LossWatch
    step: Hook
    evaluate: Hook | None

    def run(self, progress: Progress | None) -> None:
        """Run the steps after the position of a checkpoint, or all steps.

        Raises `Aborted` once the run has failed.
        """
        done = progress.step if progress is not None else 0
        total = self.total_steps
        if why := self._why_nothing_is_left(done, total):
            self._warn(f"nothing is left to train after step {done}: {why}")
            return
        self._report_start(done + 1, total)
        self.execution.report_state("running")
        self.execution.common_step.first = done + 1
        while True:
            if self.execution.channel.aborted is not None:
                raise Aborted(self.execution.channel.aborted)
            self._request_in_time()
            while action := self._next_action(done):
                if action & Action.STOP:
                    # A node that saves has no limit of time for this step any more, so
                    # that all must have ended it.
                    barrier(self.execution.plan, self.execution.channel, {}, STOPPED)
                self._act(done, action)
                if action & Action.STOP:
                    return
            done += 1
            action = self._run_step(done, total)
            if done == total:
                action |= Action.SAVE | Action.STOP
            self._act(done, action)
            if action & Action.STOP:
                return

    def _next_action(self, done: int) -> Action:
        """Return what all nodes do after step `done`, once they have agreed on it."""
        start = time.perf_counter()
        action = self.execution.common_step.next_action(done)
        if self.checkpoints is not None:
            self.checkpoints.seconds += time.perf_counter() - start
        return action

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
        every = self.execution.plan.evaluate_every
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

    def _run_step(self, number: int, total: int) -> Action:
        """Run a step, and the evaluation that follows it; return what the spec fixes to
        do after it."""
        execution, node = self.execution, self.node
        epoch, index = divmod(number - 1, self._steps_per_epoch)
        node.enter_step(number, epoch + 1, index)
        execution.step = number
        start = time.perf_counter()
        self.step(node)
        execution.timing.add(time.perf_counter() - start, node.count)
        ends_epoch = index + 1 == self._steps_per_epoch
        is_due = number % self._evaluation_every == 0
        evaluated = self.evaluate is not None and (is_due or number == total)
        self.metrics.end_step(number, epoch + 1, node.count, evaluated=evaluated)
        action = Action.NONE
        if evaluated:
            assert self.evaluate is not None
            assert node.evaluating is not None
            execution.report_state("evaluating")
            node.enter_evaluation(number)
            self.evaluate(node)
            self.metrics.end_evaluation(number, node.evaluating.epoch_rows)
            execution.report_state("running")
            action = self._verdict(number, is_due)
        checkpoints = self.checkpoints
        if checkpoints is not None and checkpoints.is_due(number, ends_epoch):
            action |= Action.SAVE
        return action

    def _verdict(self, step: int, is_due: bool) -> Action:
        """Return what follows from an evaluation, which the control node decides before
        any node begins the next step."""
        if not self.watches:
            return Action.NONE
        plan, channel = self.execution.plan, self.execution.channel
        key = Key(VERDICT, step)
        if not self.execution.is_control:
            return Action(receive_json(channel, plan.control, key, int))
        self.metrics.flush()
        action = self.watches.add(step, self.history.eval, is_due=is_due)
        stopping = self.watches.stopping
        if action & Action.STOP and stopping is not None and stopping.found is not None:
            best = stopping.found
            self._warn(
                f"train.early_stopping ends the run after step {step}: the best"
                f" {best.metric} was {best.value:.4g}, after step {best.step}"
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

    def _act(self, step: int, action: Action) -> None:
        """Save a checkpoint of a step. When the run stops, one is saved too."""
        checkpoints, execution = self.checkpoints, self.execution
        if checkpoints is None or not action:
            return
        start = time.perf_counter()
        waits = checkpoints.is_writing and not action & Action.STOP
        if action & Action.STOP:
            execution.report_state(SAVING)
        elif waits:
            execution.report_state(STILL_WRITING)
        progress = None
        if execution.is_control:
            self.metrics.flush()
            batches = (step - 1) % self._steps_per_epoch + 1
            if not self.loss.stops:  # otherwise the checkpoint is discarded
                progress = self.watches.store(self.history.progress(batches))
        checkpoints.save(step, progress)
        checkpoints.seconds += time.perf_counter() - start
        if waits:
            execution.report_state("running")
