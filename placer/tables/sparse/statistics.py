"""Defines the statistics of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """The size of a table, and counts since its creation.

    Attributes:
        rows: the current number of rows.
        counted: the current number of keys that are counted but have no row.
        nbytes: the current memory in bytes.
        limit: the bytes that all tables of the server may use together.
        admitted: how often a new row was created for a key.
        refused: how often a pushed key was not given a row.
        forgotten: the number of forgotten rows.
        evicted: the number of rows dropped because the table exceeded its capacity.
        not_finite: the number of gradients dropped because they were not finite.
        hits: how often a pulled key had a row.
        lookups: how often a key was pulled.
    """

    rows: int
    counted: int
    nbytes: int
    limit: int
    admitted: int
    refused: int
    forgotten: int
    evicted: int
    not_finite: int
    hits: int
    lookups: int
