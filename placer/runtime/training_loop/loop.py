"""The loop over the steps of a run, with the evaluations and checkpoints between them."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NoReturn

from placer.channel.interface import Aborted, Key
from placer.checkpoint.manifest import Progress
from placer.runtime.batches.batches import Batches
from placer.runtime.control.barrier import (
    EVALUATION,
    OPENED,
    STOPPED,
    VERDICT,
    barrier,
    receive_json,
    send_json,
)
from placer.runtime.control.common_step import Action
from placer.runtime.control.events import (
    RUNNING,
    WAITING,
    WAITING_FOR_FILE,
    NodeWarning,
    Notice,
)
from placer.runtime.control.execution import Execution
from placer.runtime.metrics.combiner import Phase
from placer.runtime.metrics.stream import MetricsStream
from placer.runtime.node.driver import NodeDriver
from placer.runtime.node.program_file import Hook
from placer.runtime.timeline.recorder import RECORD, WAIT
from placer.runtime.timeline.recording import Recording
from placer.runtime.training_loop import asynchronous_tables
from placer.runtime.training_loop.asynchronous_tables import Drained
from placer.runtime.training_loop.early_stopping import Watches
from placer.runtime.training_loop.saves import Saves
from placer.runtime.training_loop.steps import Steps
from placer.runtime.training_loop.stream import Announcement, Next, PassesOfStream


@dataclass(slots=True)
class Training:
    """The training steps of one node.

    Attributes:
        execution: the node's run.
        driver: advances the node from step to step.
        steps: all steps of the run.
        metrics: receives the metrics of steps and evaluations.
        saves: saves the run between two steps.
        watches: watches evaluation results.
        recording: records the node's part of the timeline; None without a timeline.
        step, evaluate: the hooks of the program.
        stream: the passes of a stream; None for a source with fixed rows.
    """

    execution: Execution
    driver: NodeDriver
    steps: Steps
    metrics: MetricsStream
    saves: Saves
    watches: Watches
    recording: Recording | None
    step: Hook
    evaluate: Hook | None
    stream: PassesOfStream | None = None
    _resumed_step: int = 0  # the step after which this run started
    _drained_step: int = -1
    _ended_step: int = 0
    _begun_step: int = 0  # the last step whose metrics have begun
    _open: Phase | None = None

    def run(self, progress: Progress | None) -> None:
        """Run the steps after the position of a checkpoint, or all steps. Raises
        `Aborted` once the run has failed."""
        self.driver.node.position.last_step = self.steps.batches.last_step
        with self.execution.pace or nullcontext():
            self._run(progress)
        self.driver.discard_sent_back()

    def _run(self, progress: Progress | None) -> None:
        first = 1 + (progress.step if progress is not None else 0)
        self._ended_step = self._resumed_step = first - 1
        why = self._why_nothing_is_left(first - 1)
        if not why and self.execution.is_control:
            execution = self.execution
            workers = asynchronous_tables.steps_of_workers(execution.plan, progress)
            start = self.steps.start_at(first, execution.attempt, workers)
            execution.report(start)
        if not why and self.stream is not None:
            self.execution.common_step.first = first
            stops = self._enter_pass(Drained(first - 1))
            if stops and self.steps.total is None:  # while it waited for a file
                return
            why = self.stream.why_no_pass() if stops else ""
        done = self._take_over(progress) if progress is not None else 0
        self._begun_step = done
        if why:
            nothing = f"nothing is left to train after step {first - 1}: {why}"
            self._warn(nothing)
            if self.execution.options.shrink and progress is not None:
                self.saves.save_shrunk(progress, nothing)
            return
        self.execution.report_state(RUNNING)
        self.execution.common_step.first = done + 1
        # The earlier run stopped after this step, but other nodes had not finished it.
        if done >= first and self._is_due(done) and self._meet(done):
            return
        while not self._agree(done):
            if self._is_step_done(done + 1):
                done += 1
                if self._is_due(done) and self._meet(done):
                    return
                while self.driver.drains_next(done):
                    if self._drain_and_act(done):
                        return
            elif self._drain_and_act(done):  # a server, before its next step
                return

    def _agree(self, done: int) -> bool:
        """Take requested actions after a step; return True if the run stops. Waits for
        slow callbacks before the next step."""
        self._keep_pace(done)
        if self.execution.channel.aborted is not None:
            raise Aborted(self.execution.channel.aborted)
        self.saves.request_in_time()
        while action := self._next_action(done):
            if self._drain_and_act(done, action):
                return True
        return False

    def _keep_pace(self, done: int) -> None:
        """Wait after a step for callbacks that lag behind."""
        execution, pace = self.execution, self.execution.pace
        if pace is None:
            return
        steps = done - self._resumed_step
        if pace.is_ahead(steps):
            execution.state = WAITING  # heartbeats report the state
            with self._slice(WAIT, "wait for callbacks"):
                pace.wait(
                    steps,
                    lambda: (
                        execution.common_step.is_pending
                        or execution.channel.aborted is not None
                    ),
                    limit=execution.options.deadline / 2,
                )
            execution.state = RUNNING

    def _meet(self, done: int) -> bool:
        """Wait until all nodes have finished a step, and take the scheduled actions
        after it. Returns True if the run stops."""
        # With asynchronous training, other nodes may drain before this step, to save or to stop.
        while self._ended_step < done:
            if self._drain_and_act(done):
                return True
        return False

    def _drain_and_act(self, done: int, action: Action = Action.NONE) -> bool:
        """Drain, then take scheduled actions (once per step) and requested actions;
        return True if the run stops."""
        drained = self._drain(done, acts=bool(action))
        if self.driver.is_server:
            self._end_steps(drained.slowest)
        is_requested = bool(action) or drained.acts
        fixed = Action.NONE if drained.is_uneven else self._end_step(drained.slowest)
        if drained.acts and not action:
            action = self._next_action(done, drained=True)
        if self._act(drained, action | fixed, is_fixed=not is_requested):
            return True
        ends = drained.slowest == self.steps.batches.last_step
        return self.stream is not None and ends and self._enter_pass(drained)

    def _enter_pass(self, drained: Drained) -> bool:
        """Enter the next pass of a stream, or wait for its files; return True if the run stops.
        All nodes call this when they have drained after the last step of a pass."""
        execution, stream, step = self.execution, self.stream, drained.slowest
        assert stream is not None
        is_begun, waits = step > self._resumed_step, False
        if execution.is_control and is_begun:
            self.saves.flush(step)
        announcement = stream.announcements(step)
        while (announced := announcement()).next is not Next.PASS:
            action = Action.NONE
            execution.channel.rest(False)
            if announced.next is Next.FAIL:
                self._fail_before_pass(stream, stream.problem, drained)
            if announced.next is Next.END:
                self.steps.total, action = step, Action.SAVE | Action.STOP
            elif announced.next is Next.ACT:
                execution.common_step.await_round()
                action = self._next_action(step, drained=True)
            elif not waits:
                waits, action = True, Action.SAVE
            is_requested = announced.next is Next.ACT
            if not is_begun and action:  # there is nothing to save
                action &= Action.STOP
                if action:
                    return True
            if self._act(drained, action, is_fixed=not is_requested):
                return True
            if waits:
                execution.report_state(WAITING_FOR_FILE)
                execution.channel.rest(True)
        if waits:
            execution.channel.rest(False)
            execution.report_state(RUNNING)
        batches = self._open_pass(stream, announced, drained)
        self.driver.node.batch_calls.training = batches
        self.driver.node.position.last_step = batches.last_step
        self.steps.enter(batches, is_last=announced.is_last)
        self.saves.history.enter(batches.passes)
        stream.enter(announced, batches)
        # A round that was requested meanwhile acts after a step of this pass: a checkpoint has the
        # position in it.
        execution.common_step.first = step + 1
        return False

    def _open_pass(
        self, stream: PassesOfStream, announced: Announcement, drained: Drained
    ) -> Batches:
        """Open the files of a pass on all nodes. If a node cannot, the run ends."""
        batches, error = None, None
        try:
            batches = stream.open(announced)
        except Exception as caught:
            error = caught
        plan, channel = self.execution.plan, self.execution.channel
        reports = barrier(plan, channel, {"failed": batches is None}, OPENED)
        if batches is None or any(each["failed"] for each in reports):
            self._fail_before_pass(stream, error, drained)
        return batches

    def _fail_before_pass(
        self, stream: PassesOfStream, error: Exception | None, drained: Drained
    ) -> NoReturn:
        """Save the pass before, on all nodes, and raise the error of this node."""
        plan, channel = self.execution.plan, self.execution.channel
        if drained.slowest > self._resumed_step:
            self._act(drained, Action.SAVE, is_fixed=True)
        if self.saves.checkpoints is not None:
            self.saves.checkpoints.wait()
        barrier(plan, channel, {}, OPENED)
        if error is not None:
            raise stream.explain(error)
        barrier(
            plan, channel, {}, OPENED
        )  # ends with the error of the node that failed
        raise AssertionError("no node has failed")

    def _take_over(self, progress: Progress) -> int:
        """Continue from the position of a checkpoint; return this node's last step.
        With asynchronous training, each worker continues after its own last step, if
        the workers are the same."""
        plan, me = self.execution.plan, self.execution.me.name
        steps = asynchronous_tables.steps_of_workers(plan, progress)
        self.driver.resume(progress.step, steps)
        done = steps.get(me, progress.step)
        if dict(progress.workers) == steps:
            self.metrics.take_over(progress.ahead, done, self.steps.phase)
        return done

    def _why_nothing_is_left(self, done: int) -> str:
        """Return why a continued run has no steps left; empty if it has steps."""
        if done == self.steps.total:
            setting = "--steps or train.epochs" if self.stream is None else "--steps"
            return f"it was the last step; {setting} sets a later one"
        if self.watches.is_exhausted:
            return "train.early_stopping has ended the run there"
        return ""

    def _warn(self, message: str) -> None:
        if self.execution.is_control:
            self.execution.report(NodeWarning(message))

    def _next_action(self, done: int, *, drained: bool = False) -> Action:
        """Return the action that all nodes have agreed on after step `done`."""
        start, checkpoints = time.perf_counter(), self.saves.checkpoints
        action = self.execution.common_step.next_action(done, drained=drained)
        if checkpoints is not None:
            checkpoints.seconds += time.perf_counter() - start
        return action

    def _is_step_done(self, number: int) -> bool:
        """Run a step, as a slice of the timeline if there is one. Return False if a server skips
        it because all workers have drained."""
        if self.recording is None:
            return self._skips(number) or self._run_step(number)
        with self.recording.step(number):
            return self._skips(number) or self._run_step(number)

    def _skips(self, number: int) -> bool:
        """Return True if this node skips a step, because the step is already over."""
        start = time.perf_counter()
        joins = self.driver.node.step_workers.joins(number)
        self._end_metrics()
        if not joins:
            self.execution.step = number
            phase = self.steps.phase(number)
            self.execution.timing.add(time.perf_counter() - start, phase.rows)
            self.metrics.end(phase, counts=False)
        return not joins

    def _end_metrics(self) -> None:
        """Pass on the metrics of the last step, once it is known whether they count."""
        counts = self.driver.node.step_workers.is_taken
        if self._open is not None and counts is not None:
            self.metrics.end(self._open, counts=counts)
            self._open = None

    def _end_steps(self, step: int) -> None:
        """End the metrics of steps that all workers have finished. This server may not
        have reached these steps."""
        for number in range(self._begun_step + 1, step + 1):
            self.metrics.end(self.steps.phase(number))
        self._begun_step = max(self._begun_step, step)

    def _run_step(self, number: int) -> bool:
        """Run a step. Return False if a server skips it because all workers have drained."""
        execution, driver = self.execution, self.driver
        node = driver.node
        start = time.perf_counter()
        driver.enter_step(number, *self.steps.passes.place_of(number))
        execution.step = number
        self.step(node)
        with self._slice(RECORD, "end step"):
            is_done = driver.end_step()
            execution.timing.add(time.perf_counter() - start, node.position.count)
            if not is_done:
                return False
            if number > self._begun_step:  # otherwise a drain has ended its metrics
                self._open, self._begun_step = self.steps.phase(number), number
            self._end_metrics()
            self.metrics.forget(driver.horizon)
        return True

    def _slice(self, category: str, name: str) -> AbstractContextManager[None]:
        """Return a context manager that records a slice of the timeline if there is one."""
        if self.recording is None:
            return nullcontext()
        return self.recording.recorder.slice(category, name)

    def _is_due(self, step: int) -> bool:
        """Whether all nodes meet after a step: an epoch or the run ends, or the spec schedules
        an evaluation or checkpoint.
        """
        steps = self.steps
        return (
            step == steps.total
            or steps.is_evaluated(step)
            or steps.passes.ends(step)
            or self.saves.is_due(step)
        )

    def _end_step(self, number: int) -> Action:
        """Evaluate after a step if scheduled; return the scheduled action. All workers
        must have finished the step. A second call for a step does nothing."""
        execution, driver, steps = self.execution, self.driver, self.steps
        action = Action.NONE
        if number <= self._ended_step:
            return action
        self._ended_step = number
        if self.stream is not None and steps.passes.ends(number):
            for table in self.stream.tables:
                table.end_pass(number)
            execution.report_state(pass_end=number)
        if steps.is_evaluated(number):
            assert self.evaluate is not None
            assert steps.evaluating is not None
            execution.report_state("evaluating")
            driver.enter_evaluation(number)
            self.evaluate(driver.node)
            rows = steps.evaluating.epoch_rows
            self.metrics.end(Phase(EVALUATION, number, 0, rows))
            execution.report_state(RUNNING)
            action = self._verdict(number, steps.evaluates_in_turn(number))
        if self.saves.is_due(number):
            action |= Action.SAVE
        if number == steps.total:
            action |= Action.SAVE | Action.STOP
        return action

    def _drain(self, done: int, *, acts: bool = False) -> Drained:
        """Drain, so that everything computed by any node is applied. With asynchronous
        training, also wait for all nodes. `acts` says that this node knows of an
        action."""
        if not self.execution.plan.is_synchronous:
            self._drain_node(done)
            drained = asynchronous_tables.meet(self.execution, done, acts=acts)
            self.metrics.forget(drained.slowest)
            return drained
        if self._drained_step != done:
            self._drained_step = done
            self._drain_node(done)
            self._end_metrics()
        return Drained(done)

    def _drain_node(self, done: int) -> None:
        """Drain this node, unless it goes through the same steps as all others."""
        driver = self.driver
        if driver.has_drains:
            with self._slice(WAIT, "drain"):
                # The end of a command is not the end of a stream.
                ends = self.stream is None and done == self.steps.total
                driver.drain(done, ends=ends)

    def _verdict(self, step: int, is_due: bool) -> Action:
        """Return the action that follows from an evaluation. The control node decides
        it before any node begins the next step."""
        if not self.watches:
            return Action.NONE
        plan, channel = self.execution.plan, self.execution.channel
        key = Key(VERDICT, step)
        if not self.execution.is_control:
            return Action(receive_json(channel, plan.control, key, int))
        self.saves.flush(step)
        evaluation = self.saves.history.eval
        action = self.watches.add(step, evaluation, is_due=is_due)
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

    def _act(self, drained: Drained, action: Action, *, is_fixed: bool = False) -> bool:
        """Save a checkpoint or stop the run, as the action says; return True if it
        stops. A stopping run saves a checkpoint as well. An action is `is_fixed` if the
        spec schedules it, and so it follows the same step on all nodes."""
        if not action:
            return False
        execution, stops = self.execution, bool(action & Action.STOP)
        if stops and not is_fixed:
            # A node that saves no longer has a time limit for this step. So wait until all nodes
            # have ended the step.
            barrier(execution.plan, execution.channel, {}, STOPPED)
        if self.saves.checkpoints is None:
            self.saves.save(drained, stops=stops)
        else:
            with self._slice(RECORD, "save checkpoint"):
                self.saves.save(drained, stops=stops)
        return stops
