"""Values that a program stores in tables, of a step that may not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placer.channel.interface import Array
from placer.tables.protocol import ProgramTable


@dataclass(slots=True)
class NewStates:
    """The values that the current step stores, by table, until it is known whether it
    counts.

    Attributes:
        tables: the tables of the node, by name.
    """

    tables: Mapping[str, ProgramTable]
    _arrays: dict[str, Sequence[Array]] = field(default_factory=dict)

    def add(self, table: str, arrays: Sequence[Array]) -> None:
        """Keep new values of the blocks of a table."""
        self._arrays[table] = arrays

    def settle(self, counts: bool) -> None:
        """Load the values, or drop those of a step that does not count."""
        if counts:
            for table, arrays in self._arrays.items():
                self.tables[table].load(arrays)
        self._arrays = {}
