"""Writes the counts of sparse tables to the folder of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import msgspec

from placer.place.node_kinds import NodeId
from placer.report.run_files import TABLES, RunTables
from placer.runtime.control.events import State
from placer.runtime.control.table_counts import TableCounts
from placer.system.files.atomic import atomic_file, mode_of

INTERVAL: Final = 5.0
"""The shortest time between two writes, in seconds."""


class TablesFile:
    """Collects the counts of each node, and writes them if they have changed."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, TableCounts]] = {}
        self._step, self._time = 0, 0.0
        self._has_changed = False
        self._next = 0.0

    def add(self, state: State) -> None:
        """Add a report of a node."""
        if not state.tables or self._tables.get(state.node) == state.tables:
            return
        self._tables[state.node] = state.tables
        self._step, self._time = state.step, time.time()
        self._has_changed = True

    def flush(self, folder: Path) -> None:
        """Write the counts if they are new and the last write was `INTERVAL` ago."""
        if self._has_changed and time.monotonic() >= self._next:
            self.write(folder)
            self._next = time.monotonic() + INTERVAL

    def write(self, folder: Path) -> None:
        """Write the counts if they are new."""
        if not self._has_changed:
            return
        self._has_changed = False
        by_table: dict[str, dict[str, TableCounts]] = {}
        for node in sorted(self._tables, key=_order):
            for name, counts in self._tables[node].items():
                by_table.setdefault(name, {})[node] = counts
        content = RunTables(self._step, round(self._time, 3), by_table)
        write_json(folder / TABLES, msgspec.to_builtins(content))


def _order(node: str) -> tuple[str, int, int]:
    name = NodeId(node)
    return name.kind, name.number, name.thread or 0


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write an object to a file of a run. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"
    with atomic_file(path, mode_of(path)) as file:
        file.write(text)
