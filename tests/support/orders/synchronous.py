"""Synchronous groups, and those with backup workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from support.orders.exchange import Arrays, Group, Piece, Run, total, whole


class Synchronous:
    """Groups whose steps take the gradients of all workers, or of those that are first.

    Args:
        clip: limits the gradients of all groups together, before each group does.

    Attributes:
        taken: the workers whose gradients each step takes.
    """

    def __init__(
        self, run: Run, groups: Sequence[Group], clip: Callable[[Arrays], Arrays]
    ) -> None:
        self._run, self._groups, self._clip = run, groups, clip
        workers = [n.name for n in run.plan.nodes if n.name.startswith("worker:")]
        self.taken = dict.fromkeys(range(1, run.steps + 1), workers)
        for node in run.plan.nodes:
            for kind, _, step, *first in run.events(node.name):
                if kind == "taken":
                    self.taken[step] = first
        names = [name for group in groups for name in group.names]
        self._versions = [{name: run.initial[name] for name in names}]
        self._slots: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        self.staleness: list[int] = []
        self.divergence = 0.0

    def values(self, worker: str, step: int) -> list[Piece] | None:
        return whole(self._versions[step - 1]) if step <= len(self._versions) else None

    def advance(self) -> bool:
        step, old = len(self._versions), self._versions[-1]
        if step > self._run.steps:
            return False
        parts = [self._run.gradient(worker, step) for worker in self.taken[step]]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return False
        share = sum(share for _, share in found)
        gradients = total(arrays for arrays, _ in found)
        gradients = self._clip({name: gradients[name] / share for name in old})
        self._versions.append({})
        for group in self._groups:
            own, rate = (
                group.clip({n: gradients[n] for n in group.names}),
                group.rate(step),
            )
            self._versions[-1] |= {
                n: group.rule_of(n)(old[n], own[n], self._slots[n], step, rate)
                for n in group.names
            }
        return True

    def final(self) -> list[Piece]:
        assert len(self._versions) == self._run.steps + 1
        return whole(self._versions[-1])
