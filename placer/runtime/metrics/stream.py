"""The stream of metrics of every node, processed outside the compute thread.

Recorded values go into a queue, even while they are still being computed. A thread of each
node waits for the values, adds them, and sends them to the control node. There, `Combiner` adds
the values of all nodes. The compute thread waits only if `MAX_PENDING` records are queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from placer.channel.interface import Channel, Key
from placer.checkpoint.manifest import StepStatistics
from placer.plan.plan import Plan
from placer.runtime.control.barrier import STEP
from placer.runtime.metrics.combiner import Combiner, Phase, StepMetrics
from placer.runtime.metrics.statistics import (
    Statistics,
    add_statistics,
    decode_statistics,
    finalizers_of,
    weight_by_rows,
)
from placer.system.owned_threads import END_LIMIT
from placer.system.worker import Worker

MAX_PENDING: Final = 1024
"""The largest number of records in a node's queue; steps wait while it is full."""


class MetricsStream:
    """The metrics of one node, as a context manager around its steps.

    Leaving the context waits until all metrics are processed, and raises any error in
    processing them. After a failure of the steps it does not wait.

    Args:
        plan: the plan.
        channel: the node's channel.
        on_step: called on the control node with the metrics of every step.
        on_loss: called on the control node with a step and its minimized loss as soon as
            the loss is known, before `on_step`.

    Attributes:
        combiner: combines the metrics of all nodes; None on nodes other than the control
            node.
    """

    def __init__(
        self,
        plan: Plan,
        channel: Channel,
        on_step: Callable[[StepMetrics], None],
        on_loss: Callable[[int, float], None],
    ) -> None:
        self.combiner = (
            Combiner(plan, channel, on_step, on_loss)
            if channel.node == plan.control
            else None
        )
        self._plan, self._channel = plan, channel
        self._finalizers = finalizers_of(plan)
        self._own: Statistics = {}
        self._recent: deque[tuple[int, Statistics]] = deque()
        self._worker: Worker[Callable[[], None]] = Worker(
            lambda call: call(), f"placer metrics of {channel.node}", bound=MAX_PENDING
        )

    def __enter__(self) -> MetricsStream:
        if self.combiner is not None:
            self.combiner.start()
        self._worker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._worker.drop()
            self._worker.join(END_LIMIT)
            if self.combiner is not None:
                self.combiner.fail()
            return
        self._worker.end()
        self._worker.join()
        try:
            if self.combiner is not None:
                self.combiner.end()
        finally:
            self._worker.check()

    def record(self, values: Mapping[str, Any], rows: int) -> None:
        """Record this node's part of the metrics of a batch. `rows` is the weight of
        metrics that are plain numbers; a training step passes 1."""
        self._worker.offer(partial(self._add, values, rows))

    def end(self, phase: Phase, *, counts: bool = True) -> None:
        """End a phase: all its metrics are recorded. `counts` is false if the step does
        not use the node's gradients; then the metrics are dropped."""
        # Raise errors of the threads here, between batches. Raised in `record`, an error would
        # be attributed to a line of the program.
        self._check()
        self._worker.put(partial(self._finish, phase, counts))

    def flush(self) -> None:
        """Wait until all recorded metrics are processed. Raises any error in processing
        them. The control node also waits for the metrics of other nodes."""
        self._worker.wait_until_idle()
        if self.combiner is not None:
            self.combiner.flush()

    # With asynchronous training, a node may be ahead of other nodes.

    def recent(self, step: int) -> list[tuple[int, Statistics]]:
        """Return this node's statistics of all steps after `step`, in order."""
        self._worker.wait_until_idle()
        return [each for each in self._recent if each[0] > step]

    def forget(self, step: int) -> None:
        """Forget the statistics of steps up to `step`, which all nodes have finished."""
        while self._recent and self._recent[0][0] <= step:
            self._recent.popleft()

    def take_over(
        self,
        ahead: Sequence[StepStatistics],
        done: int,
        phase_of: Callable[[int], Phase],
    ) -> None:
        """Continue with the statistics of steps that only some nodes had finished.

        Args:
            ahead: the statistics of these steps, from the checkpoint of an earlier run.
            done: the last step that this node had finished.
            phase_of: returns the phase of a step.
        """
        own: dict[int, Statistics] = {}
        for each in ahead:
            statistics = decode_statistics(each.statistics)
            if each.node == self._channel.node:
                own[each.step] = statistics
                self._recent.append((each.step, statistics))
            elif self.combiner is not None:
                self.combiner.know(each.node, each.step, statistics)
        if self.combiner is not None:
            first = min((each.step for each in ahead), default=done + 1)
            for step in range(first, done + 1):
                self.combiner.add(phase_of(step), own.get(step, {}))

    def end_after(self, step: int) -> None:
        """Tell the control node that this node sends no metrics after its last step."""
        if self._plan.node(self._channel.node).step.metrics:
            self._channel.send(self._plan.control, Key(STEP, step + 1), [])

    def _check(self) -> None:
        self._worker.check()
        if self.combiner is not None:
            self.combiner.check()

    # Run by the thread.

    def _add(self, values: Mapping[str, Any], rows: int) -> None:
        add_statistics(self._own, weight_by_rows(values, self._finalizers, rows))

    def _finish(self, phase: Phase, counts: bool) -> None:
        """End a phase: no more records follow for it."""
        if not counts:
            self._own = {}
        if phase.edge == STEP and self._own and not self._plan.is_synchronous:
            self._recent.append((phase.step, self._own))
        if self.combiner is not None:
            self.combiner.add(phase, self._own)
        elif self._own or not counts:
            values = [np.asarray(self._own[name]) for name in sorted(self._own)]
            self._channel.send(self._plan.control, Key(phase.edge, phase.step), values)
        self._own = {}
