"""The stream of metrics of every node, off the compute thread.

What a program records goes into a queue, whether it is already computed or not. A
thread of each node waits for the values, adds them, and sends them to the control node,
where `Combiner` adds the values of all nodes. The compute thread waits for none of this,
unless `MAX_PENDING` records are in the queue.
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
"""The most records that may be in the queue of a node; then its steps wait."""


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

    Attributes:
        combiner: that of the control node; None on the others.
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
        """Record this node's part of metrics of a batch.

        A plain number counts by `rows` rows; a training step, which has one batch,
        passes 1.
        """
        self._worker.offer(partial(self._add, values, rows))

    def end(self, phase: Phase, *, counts: bool = True) -> None:
        """Note that a training step, or the evaluation after it, has recorded all of its
        metrics. They do not count if the node has no part in the step."""
        # An error of a thread is raised here, between the batches, and not in `record`:
        # there it would be attributed to a line of the program.
        self._check()
        self._worker.put(partial(self._finish, phase, counts))

    def flush(self) -> None:
        """Wait until all that was recorded has been processed, on the control node with
        what other nodes have recorded; raises what went wrong with it."""
        self._worker.wait_until_idle()
        if self.combiner is not None:
            self.combiner.flush()

    # Without lockstep a node may have done steps that others have not.

    def recent(self, step: int) -> list[tuple[int, Statistics]]:
        """Return this node's statistics of the steps after one, in their order."""
        self._worker.wait_until_idle()
        return [each for each in self._recent if each[0] > step]

    def forget(self, step: int) -> None:
        """Forget the statistics of the steps up to one, which all nodes have done."""
        while self._recent and self._recent[0][0] <= step:
            self._recent.popleft()

    def take_over(
        self,
        ahead: Sequence[StepStatistics],
        done: int,
        phase_of: Callable[[int], Phase],
    ) -> None:
        """Take over the statistics of steps that not all nodes had done in an earlier
        run, in which this node has done those up to `done`."""
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
        """Tell the control node that this node, whose last step it is, has no metrics of
        later ones."""
        if self._plan.node(self._channel.node).step.metrics:
            self._channel.send(self._plan.control, Key(STEP, step + 1), [])

    def _check(self) -> None:
        """Raise the first error of a thread."""
        self._worker.check()
        if self.combiner is not None:
            self.combiner.check()

    # Run by the thread.

    def _add(self, values: Mapping[str, Any], rows: int) -> None:
        """Add recorded values to those of this node."""
        add_statistics(self._own, weight_by_rows(values, self._finalizers, rows))

    def _finish(self, phase: Phase, counts: bool) -> None:
        """End a step, or the evaluation after it: no more records follow for it."""
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
