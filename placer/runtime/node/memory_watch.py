"""Warns before the sparse tables of a node have used up their memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from placer.tables.sparse.table import SparseTable

NEARLY_FULL: Final = 0.9
"""The used share of the memory at which a node warns."""


@dataclass(frozen=True, slots=True)
class MemoryWatch:
    """Warns once when the sparse tables of a node use `NEARLY_FULL` of their memory.

    The memory of a running save does not count. Tables that reach their capacity within the
    memory do not warn.

    Attributes:
        node: the name of the node.
        tables: the sparse tables whose partitions the node holds, by name.
        warned: the nodes that have warned. It may outlive an attempt of the run.
        warn: receives the warning.
    """

    node: str
    tables: Mapping[str, SparseTable]
    warned: set[str]
    warn: Callable[[str], None]

    def check(self) -> None:
        """Warn if the memory is nearly full, and this node has not warned yet."""
        if self.node in self.warned or not self.tables:
            return
        tables = self.tables.values()
        budget = next(iter(tables)).budget
        least = NEARLY_FULL * budget.total
        if budget.used < least:  # cheap, and includes saves
            return
        used = sum(table.lasting_nbytes for table in tables)
        growth = sum(table.growth_nbytes for table in tables)
        if used < least or used + growth <= budget.total:
            return
        self.warned.add(self.node)
        name, table = max(
            self.tables.items(),
            key=lambda each: (each[1].growth_nbytes > 0, each[1].lasting_nbytes),
        )
        self.warn(
            f"table {name}: its {table.rows:,} rows use {table.lasting_nbytes:,} bytes, and"
            f" all sparse tables use {used / budget.total:.0%} of the limit of"
            f" {budget.total:,} bytes. The run ends when no more rows fit: set 'capacity',"
            " 'forget' or 'admit' of the table, or use more servers"
        )
