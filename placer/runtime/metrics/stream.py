"""Metrics on their way from every node to the control node, off the compute thread.

What a program records goes into a queue as it is, computed or not. A thread waits for
the numbers, adds them up, and sends them to the control node; there another puts those
of all nodes together, in the order of the nodes. Nothing that a step does waits for
it, unless it has fallen `BEHIND`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import numpy as np

from placer.build.plan import Plan
from placer.channel.protocol import Channel, Key
from placer.runtime.metrics.statistics import Statistics, add, finals, numbers, weighted
from placer.runtime.run.barrier import EVALUATION, STEP

BEHIND: Final = 1024
"""Records that may wait for their numbers, or to be listened to; then a step waits."""


@dataclass(frozen=True, slots=True)
class Line:
    """One training step's numbers, and the evaluation's that ran after it.

    `statistics` is what the step's numbers are made of: to be added up over an epoch.
    """

    step: int
    epoch: int
    rows: int
    metrics: dict[str, float]
    statistics: Statistics
    eval: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class _Recorded:
    values: Mapping[str, Any]
    rows: int


@dataclass(frozen=True, slots=True)
class _Ended:
    """A step (or the evaluation after it) that has recorded all it will."""

    edge: int
    step: int
    epoch: int
    rows: int


class Metrics:
    """One node's metrics; the control node calls `listen` with every step's line, and
    before that, as soon as it is known, `watch` with the step and its minimized loss.

    To be entered around the steps. Leaving waits until all lines have been listened to
    and raises what went wrong; after a failure it waits for nothing.
    """

    def __init__(
        self,
        plan: Plan,
        channel: Channel,
        listen: Callable[[Line], None],
        watch: Callable[[int, float], None],
    ) -> None:
        self._plan, self._channel = plan, channel
        self._listen, self._watch = listen, watch
        self._finals = finals(plan)
        self._told = {name: self._finals[name] for name in plan.metrics}
        self._queue: queue.Queue[_Recorded | _Ended | None] = queue.Queue(BEHIND)
        self._mine: Statistics = {}
        self._line: Line | None = None
        self._error: BaseException | None = None
        self._left = False
        control = channel.node == plan.control
        self._end = self._together if control else self._send
        self._thread = threading.Thread(
            target=self._run, name=f"placer metrics of {channel.node}", daemon=True
        )

    def __enter__(self) -> Metrics:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left = kind is not None
        if self._left:  # the thread may be stuck until the channel is told
            with suppress(queue.Full):
                self._queue.put_nowait(None)
            return
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def record(self, values: Mapping[str, Any], rows: int) -> None:
        """Take this node's part of metrics of a batch of `rows` rows.

        A plain number counts by them; a step, which has one batch, gives 1.
        """
        self._queue.put(_Recorded(values, rows))

    def step(self, step: int, epoch: int, rows: int) -> None:
        """A training step over `rows` rows has recorded all of its metrics."""
        self._put(_Ended(STEP, step, epoch, rows))

    def evaluation(self, step: int, rows: int) -> None:
        """So has the evaluation after a step, over `rows` rows."""
        self._put(_Ended(EVALUATION, step, 0, rows))

    def _put(self, item: _Ended) -> None:
        """What went wrong is told between batches: no line of the program is to blame."""
        if self._error is not None:
            raise self._error
        self._queue.put(item)

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None and not self._left:
                if isinstance(item, _Ended):
                    self._end(item)
                    self._mine = {}
                else:
                    add(self._mine, weighted(item.values, self._finals, item.rows))
            if self._line is not None and not self._left:
                self._listen(self._line)
        except BaseException as error:
            self._error = error
            while not self._left and self._queue.get() is not None:
                pass  # nobody is to wait for room

    def _send(self, ended: _Ended) -> None:
        if self._mine:
            values = [np.asarray(self._mine[name]) for name in sorted(self._mine)]
            self._channel.send(self._plan.control, Key(ended.edge, ended.step), values)

    def _together(self, ended: _Ended) -> None:
        """Put together what the nodes recorded; a line goes when the next step's is
        here, with the evaluation between them."""
        whole = self._whole(ended)
        if ended.edge == STEP:
            if self._line is not None:
                self._listen(self._line)
            self._watch(ended.step, float(whole[self._plan.minimize]))
            whole = {name: whole[name] for name in self._told}
            told = numbers(whole, self._told, 1)
            self._line = Line(ended.step, ended.epoch, ended.rows, told, whole)
        elif (line := self._line) is not None:
            told = numbers(whole, self._told, ended.rows)
            self._line = Line(
                line.step, line.epoch, line.rows, line.metrics, line.statistics, told
            )

    def _whole(self, ended: _Ended) -> Statistics:
        """The sum of partial metrics over the nodes; of any other the first node's."""
        whole: Statistics = {}
        for node in self._plan.nodes:
            phase = node.step if ended.edge == STEP else node.evaluation
            if phase is None or not phase.metrics:
                continue
            if node.name == self._channel.node:
                found = self._mine
            else:
                key = Key(ended.edge, ended.step)
                arrays = self._channel.receive(node.name, key)
                found = dict(zip(sorted(phase.metrics), arrays, strict=True))
            for name, metric in phase.metrics.items():
                if name not in whole or metric.layout == "P":
                    add(whole, {name: found[name]})
        return whole
