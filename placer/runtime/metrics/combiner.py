"""The metrics of all nodes, on the control node.

A thread adds what the nodes have recorded, in the order of the nodes, and passes on the
metrics of each step, with those of the evaluation after it.
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
    """A training step, or the evaluation after it, of which a node has recorded all.

    Attributes:
        edge: STEP, or EVALUATION, of `placer.runtime.control.barrier`.
        step: the number of the step, from 1.
        epoch: the number of its epoch, from 1.
        rows: the number of rows of the global batch, or of the evaluation.
        evaluated: whether an evaluation follows. The metrics of the step wait for it,
            or for the next step; otherwise they are passed on at once.
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
        rows: the number of rows of the global batch that were trained.
        untrained_rows: the number of those of its other rows, which backup workers had.
        metrics: the metrics of the step, over the rows that were trained.
        statistics: the statistics of the step, to be added over an epoch.
        eval: the metrics of the evaluation after the step.
        seconds: the time from the beginning of the first step until the metrics of the
            step were known.
        evaluation_seconds: the time from then until those of the evaluation were known.
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
        on_loss: called before that, as soon as the minimized loss of a step is known,
            with the step and the loss.
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
        self._passed = 0  # the last step whose metrics were passed on
        self._last: float = math.inf
        self._begin = 0.0
        self._worker = Worker(self._combine, "placer metrics of all nodes")

    def start(self) -> None:
        """Start the thread; the first step begins now."""
        self._begin = time.perf_counter()
        self._worker.start()

    def add(self, phase: Phase, own: Statistics) -> None:
        """Add what the control node has recorded in a step or an evaluation; those of
        other nodes are received."""
        self._worker.offer((phase, own))

    def know(self, node: str, step: int, statistics: Statistics) -> None:
        """Take over the statistics of a node in a step of an earlier run, which not all
        nodes had done; before the start."""
        self._known[node, step] = statistics

    def flush(self) -> None:
        """Wait until all that was added is passed on; raises what went wrong."""
        self._worker.wait_until_idle()

    def flush_to(self, step: int) -> None:
        """Wait until the metrics of a step are passed on, which all nodes have done;
        raises what went wrong."""
        self._worker.wait_for(lambda: self._passed >= step)
        self._worker.check()

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did."""
        self._worker.check()

    def end_after(self, step: int) -> None:
        """Ignore what nodes have recorded after a step: others will not do these steps."""
        self._last = step

    def end(self) -> None:
        """Wait until all is passed on, and end the thread; raises what went wrong."""
        self._worker.close()
        self._pass_on_pending()

    def fail(self) -> None:
        """End the thread, after what it does now."""
        self._worker.drop()
        self._worker.join(END_LIMIT)

    # Run by the thread.

    def _combine(self, recorded: tuple[Phase, Statistics]) -> None:
        """Combine what the nodes recorded.

        The metrics of a step are passed on when its evaluation or the next step ends,
        because an evaluation between the two belongs to them.
        """
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
        """Pass on the metrics of the last step, if that has not been done."""
        if self._pending is not None:
            self._on_step(self._pending)
            with self._worker.changed:
                self._passed = self._pending.step
                self._worker.changed.notify_all()
            self._pending = None

    def _trained_rows(self, phase: Phase, nodes: Sequence[NodePlan]) -> int:
        """Return how many rows of a step were trained: with backup workers, those of the
        nodes whose metrics count."""
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
        """Return the statistics of a step with means over the rows that were trained,
        not over the batch."""
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
        """Return the sum over the nodes of partial statistics, and the first node's
        value of all others, with the nodes whose statistics count; nothing useful for a
        step that some node will not do."""
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
            if not statistics:  # it has ended before this step, or has no part in it
                continue
            counted.append(node)
            for name, metric in planned.metrics.items():
                if name not in totals or metric.layout == "P":
                    add_statistics(totals, {name: statistics[name]})
        return totals, counted
