"""Groups in lockstep, and those with backup workers."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from support.orders.exchange import Arrays, Group, Piece, Run, total, whole


class Lockstep:
    """A group whose steps take the gradients of all workers, or of those that are first.

    Attributes:
        taken: the workers whose gradients each step takes.
    """

    def __init__(self, run: Run, group: Group) -> None:
        self._run, self._group = run, group
        workers = [f"worker:{i}" for i in range(run.plan.workers)]
        self.taken = dict.fromkeys(range(1, run.steps + 1), workers)
        for node in run.plan.nodes:
            for kind, _, step, *first in run.events(node.name):
                if kind == "taken":
                    self.taken[step] = first
        self._versions = [{name: run.initial[name] for name in group.names}]
        self._slots: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.staleness: list[int] = []
        self.divergence = 0.0

    def values(self, worker: str, step: int) -> list[Piece] | None:
        return whole(self._versions[step - 1]) if step <= len(self._versions) else None

    def advance(self) -> bool:
        step, group = len(self._versions), self._group
        if step > self._run.steps:
            return False
        parts = [self._run.gradient(worker, step) for worker in self.taken[step]]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return False
        share = sum(share for _, share in found)
        gradients = total(arrays for arrays, _ in found)
        gradients = group.clip({n: gradients[n] / share for n in group.names})
        self._versions.append(self._updated(gradients, step))
        return True

    def final(self) -> list[Piece]:
        assert len(self._versions) == self._run.steps + 1
        return whole(self._versions[-1])

    def _updated(self, gradients: Arrays, step: int) -> Arrays:
        rule_of, rate = self._group.rule_of, self._group.rate(step)
        return {
            name: rule_of(name)(value, gradients[name], self._slots[name], step, rate)
            for name, value in self._versions[-1].items()
        }
