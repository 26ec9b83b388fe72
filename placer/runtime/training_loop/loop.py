"""The loop over the steps of a run, with the evaluations and checkpoints between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, NoReturn

from placer.channel.interface import Aborted, Key
from placer.checkpoint.manifest import Progress
from placer.errors import PlacerError
from placer.plan.settings.data.stream import NOW
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
    WAITING_FOR_ROWS,
    WAITING_IN_STREAM,
    NodeWarning,
    Notice,
)
from placer.runtime.control.execution import Execution
from placer.runtime.control.failure import FinalError
from placer.runtime.metrics.combiner import Phase
from placer.runtime.metrics.stream import MetricsStream
from placer.runtime.node.driver import NodeDriver
from placer.runtime.node.program_file import Hook
from placer.runtime.timeline.recorder import RECORD, WAIT
from placer.runtime.timeline.recording import Recording
from placer.runtime.training_loop import asynchronous_tables
from placer.runtime.training_loop.asynchronous_tables import Drained
from placer.runtime.training_loop.early_stopping import Watches
from placer.runtime.training_loop.lanes import Lanes
from placer.runtime.training_loop.saves import Saves
from placer.runtime.training_loop.steps import Steps
from placer.runtime.training_loop.stream import (
    Announcement,
    Next,
    PassesOfStream,
)

WAIT_FOR_ROWS: Final = "wait for rows"
WAIT_FOR_FILES: Final = "wait for files"


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
    _why_no_pass: str = ""  # why no pass of this command can follow, at its end

    def run(self, progress: Progress | None) -> None:
        """Run the steps after the position of a checkpoint, or all steps. Raises
        `Aborted` once the run has failed."""
        self.driver.node.position.last_step = self.steps.batches.last_step
        self.execution.channel.wait_without_limit(self._waits_alone)
        with self.execution.pace or nullcontext():
            self._run(progress)
        self.execution.channel.wait_without_limit(False)
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
            why = self._why_no_pass
            if stops and not why:  # while it waited for a file
                return
        done = self._take_over(progress) if progress is not None else 0
        self._begun_step = done
        if why:
            nothing = f"nothing is left to train after step {first - 1}: {why}"
            if self.execution.is_control:
                if self._why_no_pass and self.execution.options.skip_pass:
                    raise FinalError(
                        f"--skip-pass needs a later pass: {self._why_no_pass}",
                        hint="give it when a later file exists; no row was left out",
                    )
                # From cron, it is normal that no file is new.
                is_end = self.stream is not None and self.stream.ends_normally
                is_now = self.execution.options.until == NOW and self._why_no_pass
                kind = Notice if is_now and is_end else NodeWarning
                self.execution.report(kind(nothing))
            if progress is not None:
                self.saves.save_untrained(progress, nothing)
            return
        self.execution.report_state(RUNNING)
        # A worker that is ahead of others may act before its first step: its rows may be missing.
        self.execution.common_step.first = max(first, done)
        # The earlier run stopped after this step, but other nodes had not finished it.
        if done >= first and self._is_due(done) and self._meet(done):
            return
        while not self._agree(done):
            if self._is_step_done(done + 1):
                done += 1
                if self.execution.plan.is_synchronous:
                    self._forget_positions(done)
                if self._is_due(done) and self._meet(done):
                    return
                while self.driver.drains_next(done):
                    if self._drain_and_act(done):
                        return
            elif self._drain_and_act(done):  # a server, before its next step
                return

    def _forget_positions(self, done: int) -> None:
        """Forget the positions of lanes before a step that all workers have done."""
        if self.stream is not None and self.stream.lanes is not None:
            self.stream.lanes.trained(self.steps.passes, done)

    def _agree(self, done: int) -> bool:
        """Take requested actions after a step; return True if the run stops. Waits for
        slow callbacks, and for rows of a Python stream, before the next step."""
        self._keep_pace(done)
        while True:
            if self._wait_for_rows(done):
                return True
            if self.execution.channel.aborted is not None:
                raise Aborted(self.execution.channel.aborted)
            self.saves.request_in_time()
            action = self._next_action(done)
            if not action:
                break
            if self._drain_and_act(done, action):
                return True
        if self._waits_alone:  # all nodes count on this step
            assert self.stream is not None
            assert self.stream.lanes is not None
            return self._wait_for_own_rows(self.stream.lanes, done, obeys=False)
        return False

    @property
    def _waits_alone(self) -> bool:
        """Whether this node waits only for its own rows of a Python stream."""
        is_python = self.stream is not None and self.stream.lanes is not None
        return is_python and not self.execution.plan.is_synchronous

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

    def _wait_for_rows(self, done: int) -> bool:
        """Wait after a step until the rows of the next one have arrived, for a Python stream; return
        True if the run stops.

        All nodes call this after the same step, unless they train asynchronously: then a node
        waits only for its own rows.
        """
        stream = self.stream
        if stream is None or stream.lanes is None:
            return False
        if not self.execution.plan.is_synchronous:
            return self._wait_for_own_rows(stream.lanes, done)
        announcement = stream.announcements_of_rows(done)
        if announcement is None:
            return False
        with self._slice(WAIT, WAIT_FOR_ROWS):
            announced = self._follow(stream, announcement, lambda: self._drain(done))
        if announced is None:
            return True
        if announced.last:
            self.steps.is_cut_short = True
            batches = self.steps.batches.until(announced.last, 1)
            self._go_on_with(batches, is_last=True)
        return False

    def _wait_for_own_rows(
        self, lanes: Lanes, done: int, *, obeys: bool = True
    ) -> bool:
        """Wait for this node's rows of the next step, by default until an action is requested; return
        True if the run stops.

        If its lanes have ended or failed, all nodes meet, and then train up to its last complete
        batch. There they meet again, as at the end of a pass.
        """
        execution, last = self.execution, self.steps.batches.last_step
        step, begun = min(done + 1 + lanes.sends_ahead, last), time.monotonic()
        have_arrived = False
        with self._slice(WAIT, WAIT_FOR_ROWS):
            while not (obeys and execution.common_step.is_pending):
                if have_arrived := lanes.wait(step):
                    break
                if execution.channel.aborted is not None:
                    raise Aborted(execution.channel.aborted)
                if execution.state != WAITING_FOR_ROWS:
                    execution.report_state(WAITING_FOR_ROWS)
                if obeys:
                    self.saves.request_in_time()
                lanes.warn_if_slow(begun)
        if have_arrived:
            if execution.state == WAITING_FOR_ROWS:
                execution.report_state(RUNNING)
            if (ended := lanes.last_before(step)) is not None:
                self._end_after(ended)
                execution.common_step.request(Action.SAVE)
                if lanes.problem is not None:
                    self._check_companions(lanes.problem, done)
        while done >= self.steps.batches.last_step:  # the lanes of a worker have ended
            if self._drain_and_act(done):
                return True
        return False

    def _check_companions(self, problem: PlacerError, done: int) -> None:
        """Raise the error of a lane if a companion has begun the next step: it read the rows before the
        lane failed for this node, and waits for this node without a limit."""
        execution, stream = self.execution, self.stream
        if len(execution.plan.companions(execution.me.name)) == 1:
            return
        execution.common_step.await_round()
        if execution.common_step.companions_go_on(done):
            assert stream is not None
            raise stream.explain(problem)

    def _end_after(self, last: int) -> None:
        """Note that the rows of a stream end after a step of the present pass."""
        self._go_on_with(self.steps.batches.until(last, 1), is_last=False)

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
        return self.stream is not None and drained.ends and self._enter_pass(drained)

    def _enter_pass(self, drained: Drained) -> bool:
        """Enter the next pass of a stream, or wait for its files; return True if the run stops.
        All nodes call this when they have drained after the last step of a pass, or when lanes
        have ended or failed before: then no pass follows."""
        stream, step = self.stream, drained.slowest
        assert stream is not None
        if self.execution.is_control and step > self._resumed_step:
            self.saves.flush(step)
        announcement = stream.announcements(step)
        name = WAIT_FOR_FILES if stream.lanes is None else WAIT_FOR_ROWS
        with self._slice(WAIT, name):
            announced = self._follow(stream, announcement, lambda: drained)
        if announced is None:
            return True
        batches = self._open_pass(stream, announced, drained)
        if announced.last:
            self.steps.is_cut_short = True
            batches = batches.until(announced.last, 1)
        self._go_on_with(batches, is_last=announced.is_last)
        self.saves.history.enter(batches.passes)
        stream.enter(announced, batches)
        # A round that was requested meanwhile acts after a step of this pass: a checkpoint has the
        # position in it.
        self.execution.common_step.first = step + 1
        return False

    def _follow(
        self,
        stream: PassesOfStream,
        announcement: Callable[[], Announcement],
        drain: Callable[[], Drained],
    ) -> Announcement | None:
        """Follow the announcements of the control node until all nodes go on. Return the last one;
        None if the run stops."""
        execution, waits = self.execution, 0
        while (announced := announcement()).next not in (Next.PASS, Next.STEPS):
            action = Action.NONE
            execution.channel.rest(False)
            if announced.next is Next.WAIT:
                waits += 1
                if announced.saves:
                    action = Action.SAVE | Action.PUBLISH
            else:
                drained = drain()
                if announced.next is Next.FAIL:
                    self._fail_before_pass(stream, stream.problem, drained)
                if announced.next is Next.END:
                    self.steps.is_cut_short = True
                    self._why_no_pass = announced.why
                    self.steps.total = drained.slowest
                    self._end_step(drained.slowest)
                    action = Action.SAVE | Action.STOP
                else:
                    execution.common_step.await_round()
                    action = self._next_action(drained.slowest, drained=True)
            if action:
                drained = drain()
                if not self._has_trained(drained):  # there is nothing to save
                    action &= Action.STOP
                    if action:
                        return None
                is_requested = announced.next is Next.ACT
                if self._act(drained, action, is_fixed=not is_requested, waits=True):
                    return None
            if waits and stream.lanes is None:
                execution.report_state(WAITING_FOR_FILE)
            elif waits > 1 and execution.state != WAITING_FOR_ROWS:  # not a short wait
                execution.report_state(WAITING_FOR_ROWS)
            execution.channel.rest(waits > 0)
        execution.channel.rest(False)
        if execution.state in WAITING_IN_STREAM:
            execution.report_state(RUNNING)
        return announced

    def _has_trained(self, drained: Drained) -> bool:
        """Whether any worker has trained a step in this run, or before without the others."""
        return drained.slowest > self._resumed_step or drained.is_uneven

    def _go_on_with(self, batches: Batches, *, is_last: bool) -> None:
        """Train the batches of a pass. If it is the last one, the run ends with them."""
        node = self.driver.node
        node.batch_calls.training = batches
        node.position.last_step = batches.last_step
        self.steps.enter(batches, is_last=is_last)

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
        if self._has_trained(drained):
            self._act(drained, Action.SAVE, is_fixed=True)
        self.saves.wait()
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
            if self._waits_alone and driver.horizon > self._resumed_step:
                self._forget_positions(driver.horizon)
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
            or bool(self.saves.due(step))
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
            if self.stream.lanes is not None:
                self.stream.lanes.compare(steps.passes.place_of(number)[0])
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
        action |= self.saves.due(number)
        if number == steps.total:
            action |= Action.SAVE | Action.STOP
        return action

    def _drain(self, done: int, *, acts: bool = False) -> Drained:
        """Drain, so that everything computed by any node is applied. With asynchronous
        training, also wait for all nodes. `acts` says that this node knows of an
        action."""
        if not self.execution.plan.is_synchronous:
            self._drain_node(done)
            lanes = self.stream.lanes if self.stream is not None else None
            drained = asynchronous_tables.meet(
                self.execution,
                done,
                self.steps.batches.last_step,
                acts=acts,
                has_failed=lanes is not None and lanes.problem is not None,
            )
            if drained.last < self.steps.batches.last_step:
                self._end_after(drained.last)
            self.metrics.forget(drained.slowest)
            if drained.slowest > self._resumed_step:
                self._forget_positions(drained.slowest)
            return drained
        if self._drained_step != done:
            self._drained_step = done
            self._drain_node(done)
            self._end_metrics()
        return Drained(done, self.steps.batches.last_step)

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

    def _act(
        self,
        drained: Drained,
        action: Action,
        *,
        is_fixed: bool = False,
        waits: bool = False,
    ) -> bool:
        """Save a checkpoint, publish, or stop the run, as the action says; return True if it
        stops. A stopping run saves and publishes as well. An action is `is_fixed` if the
        spec schedules it, and so it follows the same step on all nodes. `waits` says that no
        step follows now."""
        if not action:
            return False
        execution, stops = self.execution, bool(action & Action.STOP)
        if stops and not is_fixed:
            # A node that saves no longer has a time limit for this step. So wait until all nodes
            # have ended the step.
            barrier(execution.plan, execution.channel, {}, STOPPED)
        if self.saves.thread is None:
            self.saves.save(drained, action, waits=waits)
        else:
            with self._slice(RECORD, "save checkpoint"):
                self.saves.save(drained, action, waits=waits)
        return stops
