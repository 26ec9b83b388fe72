"""The stream of metrics from every node to the control node, off the compute thread.

What a program records goes into a queue, whether it is already computed or not. A
thread of each node waits for the values, adds them, and sends them to the control node.
The thread of the control node adds the values of all nodes, in the order of the nodes,
and reports a line per step. The compute thread waits for none of this, unless
`MAX_PENDING` records are in the queue.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from placer.build.plan import Plan
from placer.channel.protocol import Channel, Key
from placer.runtime.metrics.statistics import (
    Statistics,
    add_statistics,
    finalize_all,
    finalizers_of,
    weight_by_rows,
)
from placer.runtime.run.barrier import EVALUATION, STEP

MAX_PENDING: Final = 1024
"""The most records that may be in the queue of a node; then its steps wait."""
FLUSH_CHECK: Final = 0.2
"""Seconds between two checks for an error while `flush` waits."""


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The metrics of one training step, and of the evaluation after it, if any.

    Attributes:
        step: the number of the step, from 1.
        epoch: the number of the epoch, from 1.
        rows: the number of rows of the global batch.
        metrics: the metrics of the step.
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


class MetricsStream:
    """The metrics of one node, as a context manager around its steps.

    Leaving the context waits until the metrics of all steps have been processed, and
    raises what went wrong with them. After a failure of the steps it does not wait.

    Args:
        plan: the plan.
        channel: the node's channel.
        on_step: called on the control node with the metrics of every step.
        on_loss: called on the control node before that, as soon as the minimized loss
            of a step is known, with the step and the loss.
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
        self._finalizers = finalizers_of(plan)
        self._reported = {name: self._finalizers[name] for name in plan.metrics}
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(MAX_PENDING)
        self._own: Statistics = {}
        self._pending: StepMetrics | None = None
        self._error: BaseException | None = None
        self._failed = False
        self._begin = 0.0
        self._thread = threading.Thread(
            target=self._run, name=f"placer metrics of {channel.node}", daemon=True
        )

    def __enter__(self) -> MetricsStream:
        self._begin = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._failed = kind is not None
        if self._failed:
            # The thread may be waiting in the channel, which is aborted only after
            # this: do not join it, and do not wait for room in a full queue either.
            with suppress(queue.Full):
                self._queue.put_nowait(None)
            return
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def record(self, values: Mapping[str, Any], rows: int) -> None:
        """Record this node's part of metrics of a batch.

        A plain number counts by `rows` rows; a training step, which has one batch,
        passes 1.
        """
        self._queue.put(partial(self._add, values, rows))

    def end_step(
        self, step: int, epoch: int, rows: int, *, evaluated: bool = True
    ) -> None:
        """Note that a training step over `rows` rows has recorded all of its metrics.

        If it is not `evaluated`, no evaluation follows, so its metrics are passed on at
        once. Otherwise they wait for the evaluation or the next step.
        """
        self._put_end(STEP, step, epoch, rows)
        if not evaluated:
            self._queue.put(self._pass_on_pending)

    def end_evaluation(self, step: int, rows: int) -> None:
        """Note that the evaluation after a step, over `rows` rows, has recorded all of
        its metrics."""
        self._put_end(EVALUATION, step, 0, rows)

    def flush(self) -> None:
        """Wait until all that was recorded has been processed, on the control node with
        what other nodes have recorded; raises what went wrong with it."""
        done = threading.Event()
        self._queue.put(done.set)
        while not done.wait(FLUSH_CHECK):
            if self._error is not None:
                break
        if self._error is not None:
            raise self._error

    def _put_end(self, edge: int, step: int, epoch: int, rows: int) -> None:
        # An error of the thread is raised here, between the batches, and not in
        # `record`: there it would be attributed to a line of the program.
        if self._error is not None:
            raise self._error
        self._queue.put(partial(self._finish, edge, step, epoch, rows))

    # Run by the thread.

    def _run(self) -> None:
        try:
            while (call := self._queue.get()) is not None and not self._failed:
                call()
            if not self._failed:
                self._pass_on_pending()
        except BaseException as error:
            self._error = error
            while not self._failed and self._queue.get() is not None:
                pass  # drain the queue, so that the compute thread never waits for room

    def _add(self, values: Mapping[str, Any], rows: int) -> None:
        """Add recorded values to those of this node."""
        add_statistics(self._own, weight_by_rows(values, self._finalizers, rows))

    def _finish(self, edge: int, step: int, epoch: int, rows: int) -> None:
        """End a step, or the evaluation after it: no more records follow for it."""
        if self._channel.node == self._plan.control:
            self._combine(edge, step, epoch, rows)
        elif self._own:
            values = [np.asarray(self._own[name]) for name in sorted(self._own)]
            self._channel.send(self._plan.control, Key(edge, step), values)
        self._own = {}

    def _combine(self, edge: int, step: int, epoch: int, rows: int) -> None:
        """Combine what the nodes recorded.

        The metrics of a step are passed on when its evaluation or the next step ends,
        because an evaluation between the two belongs to them.
        """
        totals = self._sum_over_nodes(edge, step)
        seconds = time.perf_counter() - self._begin
        if edge == STEP:
            self._pass_on_pending()
            self._on_loss(step, float(totals[self._plan.minimize]))
            totals = {name: totals[name] for name in self._reported}
            numbers = finalize_all(totals, self._reported, 1)
            self._pending = StepMetrics(
                step, epoch, rows, numbers, totals, seconds=seconds
            )
        elif (pending := self._pending) is not None:
            numbers = finalize_all(totals, self._reported, rows)
            self._pending = replace(
                pending, eval=numbers, evaluation_seconds=seconds - pending.seconds
            )
            self._pass_on_pending()

    def _pass_on_pending(self) -> None:
        """Pass on the metrics of the last step, if that has not been done."""
        if self._pending is not None:
            self._on_step(self._pending)
            self._pending = None

    def _sum_over_nodes(self, edge: int, step: int) -> Statistics:
        """Return the sum over the nodes of partial statistics, and the first node's
        value of all others."""
        totals: Statistics = {}
        for node in self._plan.nodes:
            phase = node.step if edge == STEP else node.evaluation
            if phase is None or not phase.metrics:
                continue
            if node.name == self._channel.node:
                statistics = self._own
            else:
                arrays = self._channel.receive(node.name, Key(edge, step))
                statistics = dict(zip(sorted(phase.metrics), arrays, strict=True))
            for name, metric in phase.metrics.items():
                if name not in totals or metric.layout == "P":
                    add_statistics(totals, {name: statistics[name]})
        return totals
