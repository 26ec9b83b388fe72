"""The barrier and reduce service: the first node keeps the run in step.

Its messages are the channel's, on edges below 0. Metrics are reduced in the order of
the nodes, off the compute thread: a partial metric is the sum over the nodes that
record it, any other is the first one's.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from placer.errors import RunError
from placer.plan import Plan
from placer.runtime.channel.protocol import Channel, Key

READY, GO, STEP, EVALUATION, DONE, SAVE = -1, -2, -3, -4, -5, -6
"""Edges of the service."""


def barrier(
    plan: Plan,
    channel: Channel,
    told: dict[str, Any],
    at: int,
    check: Callable[[list[Any]], None] | None = None,
) -> list[Any]:
    """Wait until every node has come to the same point; all get what all told.

    `told` is any JSON. The result is in the order of the plan's nodes. The control node
    checks it before it lets the others go on: one node fails, and not all.
    """
    names = [node.name for node in plan.nodes]
    if channel.node == plan.control:
        heard = [
            told if name == channel.node
            else _load(channel.receive(name, Key(at, 0))[0])
            for name in names
        ]  # fmt: skip
        if check is not None:
            check(heard)
        for name in names:
            if name != channel.node:
                channel.send(name, Key(GO, at), [_dump(heard)])
        return heard
    channel.send(plan.control, Key(at, 0), [_dump(told)])
    heard = _load(channel.receive(plan.control, Key(GO, at))[0])
    assert isinstance(heard, list)
    return heard


def agree(plan: Plan, told: Sequence[Mapping[str, Any]], what: str) -> Any:
    """The one value of `what` that all nodes that know it told; RunError otherwise."""
    found: dict[str, Any] = {
        node.name: entry[what]
        for node, entry in zip(plan.nodes, told, strict=True)
        if entry[what] is not None
    }
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{name}: {value}" for name, value in found.items())
        if what.endswith("rows"):
            raise RunError(
                f"the nodes do not read the same data: {what} differ: {listed}",
                hint="a source must give the same rows on every node",
            )
        raise RunError(
            f"the nodes were not started alike: {what}: {listed}",
            hint="give every node of a run the same build and options",
        )
    return next(iter(found.values()), None)


@dataclass(frozen=True, slots=True)
class Line:
    """One training step's metrics, and the evaluation's that ran after it."""

    step: int
    epoch: int
    rows: int
    metrics: dict[str, float]
    eval: dict[str, float] | None


class Metrics:
    """Metrics on their way to the control node, and there to whoever listens.

    Every node gives its records step by step; on the control node a thread puts those
    of all nodes together and calls `listen` with each step's line, in order.
    """

    def __init__(
        self, plan: Plan, channel: Channel, listen: Callable[[Line], None]
    ) -> None:
        self._plan, self._channel, self._listen = plan, channel, listen
        self._given: queue.SimpleQueue[_Given | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if channel.node == plan.control:
            self._thread = threading.Thread(
                target=self._reduce, name="placer metrics", daemon=True
            )
            self._thread.start()

    def step(self, step: int, epoch: int, rows: int, records: dict[str, float]) -> None:
        """Give this node's records of a training step."""
        self._give(_Given(STEP, step, epoch, rows, records))

    def evaluation(self, step: int, rows: int, records: dict[str, float]) -> None:
        """Give this node's sums of an evaluation over `rows` rows."""
        self._give(_Given(EVALUATION, step, 0, rows, records))

    def close(self) -> None:
        """Wait until every line has been listened to; raise what went wrong."""
        if self._thread is not None:
            self._given.put(None)
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _give(self, given: _Given) -> None:
        if self._error is not None:
            raise self._error
        if self._thread is not None:
            self._given.put(given)
        elif given.records:
            values = np.array([given.records[n] for n in sorted(given.records)])
            key = Key(given.edge, given.step)
            self._channel.send(self._plan.control, key, [values])

    def _reduce(self) -> None:
        try:
            line: Line | None = None
            while (given := self._given.get()) is not None:
                metrics = self._together(given)
                if given.edge == STEP:
                    if line is not None:
                        self._listen(line)
                    line = Line(given.step, given.epoch, given.rows, metrics, None)
                elif line is not None:
                    means = {k: v / given.rows for k, v in metrics.items()}
                    line = Line(line.step, line.epoch, line.rows, line.metrics, means)
            if line is not None:
                self._listen(line)
        except BaseException as error:
            self._error = error

    def _together(self, given: _Given) -> dict[str, float]:
        found: dict[str, float] = {}
        for node in self._plan.nodes:
            phase = node.step if given.edge == STEP else node.evaluation
            layouts = phase.metrics if phase is not None else {}
            if not layouts:
                continue
            if node.name == self._channel.node:
                values = given.records
            else:
                key = Key(given.edge, given.step)
                (array,) = self._channel.receive(node.name, key)
                values = dict(zip(sorted(layouts), array.tolist(), strict=True))
            for name, layout in layouts.items():
                if name not in found:
                    found[name] = values[name]
                elif layout == "P":
                    found[name] += values[name]
        return {name: found[name] for name in self._plan.metrics if name in found}


@dataclass(frozen=True, slots=True)
class _Given:
    edge: int
    step: int
    epoch: int
    rows: int
    records: dict[str, float]


def _dump(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def _load(array: np.ndarray) -> Any:
    return json.loads(array.tobytes())
