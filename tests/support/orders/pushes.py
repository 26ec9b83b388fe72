"""Tables of servers that apply what each worker pushes."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import numpy as np

from placer.plan.plan import Edge
from placer.plan.settings.training.update_modes import GradientMode
from placer.runtime.exchange.worker_messages import MessageKind
from support.orders.exchange import (
    Arrays,
    Group,
    Piece,
    Run,
    clipped,
    events_of,
    messages_taken,
)


class Pushes:
    """A table of a server, in all versions: the order says which version each worker uses
    in each step, what it sends, and whose messages the server takes.

    A worker's part may be that of its heter node.
    """

    def __init__(self, run: Run, group: Group, push: Edge) -> None:
        self._run, self._group = run, group
        (server,) = push.targets
        gradients = {value.result for value in push.values}
        table = next(
            table
            for table in run.plan.node(server).tables
            if table.blocks[0].gradient in gradients
        )
        (pull,) = (
            edge.id
            for edge in run.plan.step_edges
            if edge.exchange == "pull"
            and (edge.sources, edge.targets) == (push.targets, push.sources)
            and edge.group == push.group
            and edge.values[0].dtype == push.values[0].dtype
        )
        self._blocks = {b.name: (b.parameter, b.start, b.stop) for b in table.blocks}
        start = {
            name: run.initial[parameter].reshape(-1)[low:high]
            for name, (parameter, low, high) in self._blocks.items()
        }
        self._versions = [start]
        workers = {node: run.plan.worker_of(node) for node in push.sources}
        self._takes = [workers[n] for n in messages_taken(run, server, push)]
        self._uses: dict[tuple[str, int], int] = {}
        self._drains: dict[str, list[int]] = {}
        self._drained: Counter[str] = Counter()
        self._bases = [0]  # the versions at the start and after each drain
        self._sends: dict[str, list[list[int]]] = {}
        for node, worker in workers.items():
            for step, version in events_of(run, node, "use", pull):
                self._uses[worker, step] = version
            self._drains[worker] = [s for (s,) in events_of(run, node, "drain", 0)]
            self._sends[worker] = events_of(run, node, "send", push.id)
        self._slots: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self._taken = 0
        self._steps: Counter[str] = Counter()
        self._messages: Counter[str] = Counter()
        self._history: list[tuple[str, int]] = []
        self.staleness: list[int] = []
        self.divergence = 0.0

    def values(self, worker: str, step: int) -> list[Piece] | None:
        version = self._version(worker, step)
        if version is None or version >= len(self._versions):
            return None
        return self._pieces(version)

    def final(self) -> list[Piece]:
        assert self._taken == len(self._takes)
        return self._pieces(-1)

    def advance(self) -> bool:
        if self._taken == len(self._takes):
            return False
        worker = self._takes[self._taken]
        kind, count = self._sends[worker][self._messages[worker]]
        if kind == MessageKind.PUSH:
            first = self._steps[worker] + 1
            steps = [*range(first, first + count)]
            parts = [self._run.gradient(worker, step) for step in steps]
            found = [clipped(self._group, part) for part in parts if part is not None]
            if len(found) < count:
                return False
            self._steps[worker] += count
            self._apply(worker, steps, found)
        elif kind == MessageKind.DRAIN:
            self._drained[worker] += 1
            if len({*self._drained.values()}) == 1 and len(self._drained) == len(
                self._sends
            ):
                self._bases.append(len(self._versions) - 1)
        self._messages[worker] += 1
        self._taken += 1
        return True

    def _version(self, worker: str, step: int) -> int | None:
        """Return the version that a worker uses in a step, counted from the start; the order
        counts from the last drain."""
        drains = sum(each < step for each in self._drains[worker])
        if drains >= len(self._bases):
            return None
        return self._bases[drains] + self._uses[worker, step]

    def _pieces(self, version: int) -> list[Piece]:
        values = self._versions[version]
        return [(p, low, values[name]) for name, (p, low, _) in self._blocks.items()]

    def _apply(
        self, worker: str, steps: list[int], parts: list[tuple[Arrays | None, float]]
    ) -> None:
        """Apply a push of some steps, unless the worker had no rows in any of them."""
        with_rows = [
            (step, gradients, share)
            for step, (gradients, share) in zip(steps, parts, strict=True)
            if gradients is not None
        ]
        if not with_rows:
            return
        mode, old, new = self._group.mode, self._versions[-1], {}
        assert isinstance(mode, GradientMode)
        base = self._version(worker, with_rows[0][0])
        assert base is not None
        share = with_rows[-1][2]
        self.staleness.append(sum(n for w, n in self._history[base:] if w != worker))
        rate = self._group.rate(steps[-1])
        if mode.staleness_scale:
            rate /= 1 + self.staleness[-1]
        for name, (parameter, low, high) in self._blocks.items():
            gradient: np.ndarray = np.sum(
                [part[parameter].reshape(-1)[low:high] for _, part, _ in with_rows], 0
            )
            if mode.merge == "mean":
                gradient = gradient / len(with_rows)
            if mode.compensate is not None:
                estimate = gradient / share
                moved = old[name] - self._versions[base][name]
                gradient = share * (estimate + mode.compensate * estimate**2 * moved)
            rule, number = self._group.rule_of(parameter), len(self._versions)
            new[name] = rule(old[name], gradient, self._slots[name], number, rate)
        self._versions.append(new)
        self._history.append((worker, len(steps)))
