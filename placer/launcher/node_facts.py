"""Collects facts about the nodes of a run between two evaluations."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from placer.runtime.control.events import State
from placer.runtime.control.table_counts import TableCounts, add_counts

MIN_SAMPLES: Final = 4
"""The smallest number of state reports for a share. A node reports about twice a second."""


class NodeFacts:
    """Shares of waiting, counts of sparse tables and staleness, from the nodes' states."""

    def __init__(self) -> None:
        self._reports: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        self._tables: dict[str, dict[str, TableCounts]] = {}
        self._staleness: dict[str, dict[str, int]] = {}

    def add(self, state: State) -> None:
        """Add a report of a node."""
        if state.tables:
            self._tables[state.node] = state.tables
        if state.staleness:
            self._staleness[state.node] = state.staleness
        if state.state == "running":
            self._reports[state.node] += 1
            self._waits[state.node] += bool(state.waiting)

    def take(self) -> dict[str, Any]:
        """Return the facts for the history line of an evaluation, and begin new shares.

        The shares are left out if a node has reported too seldom. Then they cover the
        time up to a later evaluation.
        """
        facts: dict[str, Any] = {}
        if self._reports and min(self._reports.values()) >= MIN_SAMPLES:
            facts["waiting"] = {
                node: round(self._waits[node] / reports, 3)
                for node, reports in sorted(self._reports.items())
            }
            self._reports.clear()
            self._waits.clear()
        if self._tables:
            counts = add_counts(self._tables.values())
            facts["tables"] = {name: each.as_dict() for name, each in counts.items()}
        if self._staleness:
            total: Counter[str] = Counter()
            for counts_of_node in self._staleness.values():
                total.update(counts_of_node)
            facts["staleness"] = {key: total[key] for key in sorted(total, key=int)}
        return facts
