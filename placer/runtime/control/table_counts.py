"""What has happened in a sparse table: counts of its holders, which are added up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class TableCounts(msgspec.Struct, frozen=True):
    """What has happened in a sparse table since the start of the run, on one node or on
    all of its holders.

    Attributes:
        rows: the rows that it has.
        nbytes: the bytes that rows, slots and the index take.
        admitted: how often a key got a row.
        refused: how often a key was updated and got no row.
        forgotten: the rows that were forgotten.
        evicted: the rows that made room for others, over the capacity.
        not_finite: the gradients that were dropped because they were not finite.
        lookups: the keys that were looked up, each once for each message.
        hits: those of them that had a row.
    """

    rows: int = 0
    nbytes: int = 0
    admitted: int = 0
    refused: int = 0
    forgotten: int = 0
    evicted: int = 0
    not_finite: int = 0
    lookups: int = 0
    hits: int = 0

    @property
    def hit_rate(self) -> float | None:
        """The part of the lookups that found a row; None before the first."""
        return self.hits / self.lookups if self.lookups else None

    def __add__(self, other: TableCounts) -> TableCounts:
        names = self.__struct_fields__
        return TableCounts(*(getattr(self, n) + getattr(other, n) for n in names))

    def as_dict(self) -> dict[str, int | float | None]:
        """Return the counts by name, with the hit rate."""
        return {**msgspec.structs.asdict(self), "hit_rate": self.hit_rate}


def add_counts(
    parts: Iterable[Mapping[str, TableCounts]],
) -> dict[str, TableCounts]:
    """Return the counts of each table, over all nodes."""
    total: dict[str, TableCounts] = {}
    for part in parts:
        for name, counts in part.items():
            total[name] = total.get(name, TableCounts()) + counts
    return total
