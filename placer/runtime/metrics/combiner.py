"""Combines the metrics of all nodes, on the control node.

A thread adds the metrics of the nodes, in the order of the nodes. It passes on the metrics of
each step together with the evaluation after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from placer.channel.interface import Channel, Key
from placer.plan.plan import NodePlan, Plan
from placer.runtime.control.barrier import STEP
from placer.runtime.metrics.statistics import (
    Statistics,
    add_statistics,
    finalize_all,
    finalizers_of,
)
from placer.system.owned_threads import END_LIMIT
from placer.system.worker import Worker


@dataclass(frozen=True, slots=True)
class Phase:
    """A training step, or the evaluation after it; its metrics are complete on a node.

    Attributes:
        edge: STEP or EVALUATION of `placer.runtime.control.barrier`.
        step: the number of the step, from 1.
        epoch: the number of its epoch, from 1.
        rows: the number of rows of the global batch, or of the evaluation.
        evaluated: whether an evaluation follows. If so, the metrics of the step wait for
            it, or for the next step.
    """

    edge: int
    step: int
    epoch: int
    rows: int
    evaluated: bool = True


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The metrics of one training step, and of the evaluation after it, if any.

    Attributes:
        step: the number of the step, from 1.
        epoch: the number of the epoch, from 1.
        rows: the number of trained rows of the global batch.
        untrained_rows: the number of rows whose gradients were not used (backup workers).
        metrics: the metrics of the step, over the trained rows.
        statistics: the statistics of the step, to be added over an epoch.
        eval: the metrics of the evaluation after the step.
        seconds: the time from the start of the first step until the metrics of this step
            were complete.
        evaluation_seconds: the time from then until the evaluation was complete.
    """

    step: int
    epoch: int
    rows: int
    metrics: dict[str, float]
    statistics: Statistics
    eval: dict[str, float] | None = None
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    untrained_rows: int = 0


class Combiner:
    """Adds the metrics of all nodes.

    Args:
        plan: the plan.
        channel: the control node's channel.
        on_step: called with the metrics of every step.
        on_loss: called with a step and its minimized loss as soon as the loss is known,
            before `on_step`.
    """

    def __init__(
        self,
        plan: Plan,
        channel: Channel,
        on_step: Callable[[StepMetrics], None],
        on_loss: Callable[[int, float], None],
    ) -> None:
        self._plan, self._channel = plan, channel
        self._on_step, self._on_loss = on_step, on_loss
        finalizers = finalizers_of(plan)
        self._reported = {
            name: finalizers[name] for name in plan.settings.train.metrics
        }
        self._pending: StepMetrics | None = None
        self._known: dict[tuple[str, int], Statistics] = {}
        self._passed = 0  # the last step passed on
        self._last: float = math.inf
        self._begin = 0.0
        self._worker = Worker(self._combine, "placer metrics of all nodes")

    def start(self) -> None:
        """Start the thread; the first step begins now."""
        self._begin = time.perf_counter()
        self._worker.start()

    def add(self, phase: Phase, own: Statistics) -> None:
        """Add the control node's own metrics of a phase; those of other nodes are received."""
        self._worker.offer((phase, own))

    def know(self, node: str, step: int, statistics: Statistics) -> None:
        """Set the statistics of a node in a step of an earlier run; call it before
        `start`. It is for steps that only some nodes had finished."""
        self._known[node, step] = statistics

    def flush(self) -> None:
        """Wait until all added metrics are passed on. Raises an error of the thread."""
        self._worker.wait_until_idle()

    def flush_to(self, step: int) -> None:
        """Wait until the metrics of a step are passed on. Raises an error of the
        thread. All nodes must have finished the step."""
        self._worker.wait_for(lambda: self._passed >= step)
        self._worker.check()

    def check(self) -> None:
        """Raise the error of the thread, if any."""
        self._worker.check()

    def end_after(self, step: int) -> None:
        """Ignore metrics after a step, because some nodes will not run the later steps."""
        self._last = step

    def end(self) -> None:
        """Wait until all metrics are passed on, and end the thread. Raises its error."""
        self._worker.close()
        self._pass_on_pending()

    def fail(self) -> None:
        """End the thread after its current phase, and wait for its end."""
        self._worker.drop()
        self._worker.join(END_LIMIT)

    # Run by the thread.

    def _combine(self, recorded: tuple[Phase, Statistics]) -> None:
        """Combine the metrics of a phase over the nodes. The metrics of a step are
        passed on when its evaluation or the next step ends, because an evaluation
        between the two belongs to the step."""
        phase, own = recorded
        totals, nodes = self._sum_over_nodes(phase, own)
        if phase.edge == STEP and phase.step > self._last:
            return
        seconds = time.perf_counter() - self._begin
        if phase.edge == STEP:
            self._pass_on_pending()
            rows = self._trained_rows(phase, nodes)
            totals = self._over_trained_rows(totals, phase.rows, rows)
            self._on_loss(phase.step, float(totals[self._plan.settings.train.minimize]))
            totals = {name: totals[name] for name in self._reported}
            numbers = finalize_all(totals, self._reported, 1)
            self._pending = StepMetrics(
                phase.step,
                phase.epoch,
                rows,
                numbers,
                totals,
                seconds=seconds,
                untrained_rows=phase.rows - rows,
            )
            if not phase.evaluated:
                self._pass_on_pending()
        elif (pending := self._pending) is not None:
            numbers = finalize_all(totals, self._reported, phase.rows)
            self._pending = replace(
                pending, eval=numbers, evaluation_seconds=seconds - pending.seconds
            )
            self._pass_on_pending()

    def _pass_on_pending(self) -> None:
        if self._pending is not None:
            self._on_step(self._pending)
            with self._worker.changed:
                self._passed = self._pending.step
                self._worker.changed.notify_all()
            self._pending = None

    def _trained_rows(self, phase: Phase, nodes: Sequence[NodePlan]) -> int:
        """Return the number of trained rows; with backup workers, only counted nodes train."""
        if not self._plan.has_backup:
            return phase.rows
        plan = self._plan
        shards = [plan.pushed_rows(node.name) for node in nodes]
        return sum(
            shard.num_rows(phase.rows, plan.settings.train.microbatches)
            for shard in shards
        )

    def _over_trained_rows(
        self, totals: Statistics, batch: int, rows: int
    ) -> Statistics:
        """Rescale means over the batch to means over the trained rows."""
        if rows == batch:
            return totals
        finalizers = finalizers_of(self._plan)
        return {
            name: total * (batch / rows) if finalizers[name] == "value" else total
            for name, total in totals.items()
        }

    def _sum_over_nodes(
        self, phase: Phase, own: Statistics
    ) -> tuple[Statistics, list[NodePlan]]:
        """Return the statistics of all nodes combined, and the nodes that count.
        Partial statistics are summed; otherwise the first node's value is used. Returns
        nothing for a step that some node will not run."""
        totals: Statistics = {}
        counted = []
        for node in self._plan.nodes:
            planned = node.step if phase.edge == STEP else node.evaluation
            if planned is None or not planned.metrics:
                continue
            if phase.edge == STEP and phase.step > self._last:
                return {}, []
            if node.name == self._channel.node:
                statistics = own
            elif phase.edge == STEP and (node.name, phase.step) in self._known:
                statistics = self._known.pop((node.name, phase.step))
            else:
                key = Key(phase.edge, phase.step)
                arrays = self._channel.receive(node.name, key)
                names = sorted(planned.metrics)[: len(arrays)]
                statistics = dict(zip(names, arrays, strict=True))
            if not statistics:  # the node ended before this step, or skipped it
                continue
            counted.append(node)
            for name, metric in planned.metrics.items():
                if name not in totals or metric.layout == "P":
                    add_statistics(totals, {name: statistics[name]})
        return totals, counted
