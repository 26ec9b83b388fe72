"""Counts of events in sparse tables, summed over the nodes that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec


class TableCounts(msgspec.Struct, frozen=True):
    """Counts for a sparse table, on one node or on all nodes.

    The counts from `admitted` on are those after the step `since`.

    Attributes:
        rows: the current number of rows.
        counted: the current number of keys that are counted but have no row.
        nbytes: the memory of rows, slots and the index in bytes.
        limit: the memory in bytes that all sparse tables of the nodes may use together.
        since: the step after which a resumed run counts; 0 if it counts from its start.
        admitted: how often a new row was created for a key.
        refused: how often a key was updated but not given a row.
        forgotten: the number of forgotten rows.
        evicted: the number of rows deleted because the table exceeded its capacity.
        not_finite: the number of gradients dropped because they were not finite.
        lookups: the number of keys looked up; each distinct key of a message counts once.
        hits: the number of lookups that found a row.
    """

    rows: int = 0
    counted: int = 0
    nbytes: int = 0
    limit: int = 0
    since: int = 0
    admitted: int = 0
    refused: int = 0
    forgotten: int = 0
    evicted: int = 0
    not_finite: int = 0
    lookups: int = 0
    hits: int = 0

    @property
    def hit_rate(self) -> float | None:
        """The fraction of lookups that found a row; None before the first lookup."""
        return self.hits / self.lookups if self.lookups else None

    def __add__(self, other: TableCounts) -> TableCounts:
        names = self.__struct_fields__
        total = TableCounts(*(getattr(self, n) + getattr(other, n) for n in names))
        return msgspec.structs.replace(total, since=max(self.since, other.since))

    def as_dict(self) -> dict[str, int | float | None]:
        """Return the counts and the hit rate by name."""
        return {**msgspec.structs.asdict(self), "hit_rate": self.hit_rate}


def add_counts(
    parts: Iterable[Mapping[str, TableCounts]],
) -> dict[str, TableCounts]:
    """Return the sum of the counts of each table over all nodes."""
    total: dict[str, TableCounts] = {}
    for part in parts:
        for name, counts in part.items():
            total[name] = total.get(name, TableCounts()) + counts
    return total
