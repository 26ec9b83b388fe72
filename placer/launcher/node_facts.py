"""Collects facts about the nodes of a run between two evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from placer.runtime.control.events import State
from placer.runtime.control.table_counts import TableCounts, add_counts
from placer.runtime.control.wait_counts import WaitCounts

MIN_SAMPLES: Final = 10
"""The smallest number of samples for a share. A node takes a sample every 50 ms."""


class NodeFacts:
    """Shares of waiting, counts of sparse tables and staleness, from the nodes' states."""

    def __init__(self) -> None:
        self._waits: dict[str, WaitCounts] = {}
        self._before: dict[str, WaitCounts] = {}
        self._tables: dict[str, dict[str, TableCounts]] = {}
        self._pass_ends: dict[str, int] = {}
        self._staleness: dict[str, dict[str, int]] = {}
        self._geo_staleness: dict[str, dict[str, int]] = {}

    def add(self, state: State) -> None:
        """Add a report of a node."""
        if state.tables:
            self._tables[state.node] = state.tables
            self._pass_ends[state.node] = state.pass_end
        if state.staleness:
            self._staleness[state.node] = state.staleness
        if state.geo_staleness:
            self._geo_staleness[state.node] = state.geo_staleness
        if state.waits.samples:
            self._waits[state.node] = state.waits

    def has_ended(self, step: int) -> bool:
        """Return whether all nodes with sparse tables have ended the pass with this last step."""
        return all(end >= step for end in self._pass_ends.values())

    def take(self) -> dict[str, Any]:
        """Return the facts for the history line of an evaluation, and begin new shares.

        The shares are left out if a node has too few samples. Then they cover the
        time up to a later evaluation.
        """
        facts: dict[str, Any] = {}
        if shares := self._shares():
            facts["waiting"] = shares
            self._before = {**self._waits}
        if self._tables:
            counts = add_counts(self._tables.values())
            facts["tables"] = {name: each.as_dict() for name, each in counts.items()}
        if self._staleness:
            facts["staleness"] = _total(self._staleness.values())
        if self._geo_staleness:
            facts["geo_staleness"] = _total(self._geo_staleness.values())
        return facts

    def _shares(self) -> dict[str, float]:
        """Return the share of waiting of each node; {} if a node has too few samples."""
        shares = {}
        for node, now in sorted(self._waits.items()):
            before = self._before.get(node, WaitCounts())
            samples = now.samples - before.samples
            if samples < MIN_SAMPLES:
                return {}
            shares[node] = round((now.waiting - before.waiting) / samples, 3)
        return shares


def _total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of histograms of staleness."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return {key: total[key] for key in sorted(total, key=int)}
