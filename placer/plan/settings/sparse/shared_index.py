"""Finds out which sparse tables over the same keys share an index."""

from __future__ import annotations

from placer.plan.settings.sparse.table import Probability, SparseTable


def shares_index(first: SparseTable, second: SparseTable) -> bool:
    """Whether two tables over the same keys always have rows for the same keys.

    They admit and forget keys by the same rules. A table that admits keys by chance draws for
    itself. The norm of rows, and a capacity, are of one table.
    """
    return (
        first.partitions == second.partitions
        and first.admit == second.admit
        and not isinstance(first.admit, Probability)
        and first.forget == second.forget
        and first.forget.norm_below is None
        and first.score == second.score
        and first.index == second.index
        and first.capacity is None is second.capacity
    )
