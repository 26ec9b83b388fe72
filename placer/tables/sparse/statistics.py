"""What a table has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """What a table has, and has done since it was created.

    Attributes:
        rows: its rows.
        nbytes: the bytes that it takes.
        admitted: keys that got a row.
        refused: keys that were pushed and got none, each time.
        forgotten: rows that were forgotten.
        evicted: rows over the capacity.
        not_finite: gradients that were dropped because they were not finite.
        hits: keys that were pulled and had a row, each time.
        lookups: keys that were pulled.
    """

    rows: int
    nbytes: int
    admitted: int
    refused: int
    forgotten: int
    evicted: int
    not_finite: int
    hits: int
    lookups: int
