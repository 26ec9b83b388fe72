"""The bytes of rows of sparse tables, against tables that have them."""

from __future__ import annotations

import numpy as np
import pytest

from placer.plan.settings.sparse.row_bytes import (
    CHUNK,
    row_bytes,
    row_length,
    table_bytes,
)
from placer.plan.settings.sparse.table import Forgetting, Scoring, SparseTable
from placer.tables.sparse.table import SparseTable as HeldTable

ROWS, PARTITIONS = 20_000, 4


def settings(**changes: object) -> SparseTable:
    return SparseTable(name="t", dim=5, partitions=PARTITIONS, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("table", "dtype", "stored"),
    [
        (settings(), "float32", 32 + 16),  # 5 values in the place of 8
        (
            settings(
                rule="rowwise_adam",  # a slot for each value, two numbers for the row
                forget=Forgetting(unseen_seconds=60),
                score=Scoring(),
            ),
            "float64",
            128 + 16 + 8 + 3 * 4,
        ),
        (settings(index="compact"), "float32", 32 + 16),
    ],
    ids=["sgd", "rowwise adam with all numbers of a row", "compact"],
)
def test_a_table_takes_as_many_bytes_as_are_counted(
    table: SparseTable, dtype: str, stored: int
) -> None:
    counted = row_bytes(table, dtype)
    assert counted.stored == stored
    held = HeldTable(table, seed=0, dtype=dtype, memory=1 << 28)
    assert held.nbytes == table_bytes(table, dtype, 0, PARTITIONS)
    keys = np.arange(ROWS, dtype=np.uint64)
    for step, some in enumerate(np.array_split(keys, 50)):
        gradients = np.zeros((some.size, table.dim), dtype)
        held.push(some, gradients, learning_rate=0.0, step=step)
    begun = PARTITIONS * CHUNK * counted.stored  # chunks that are not full
    low, high = counted.total
    assert low * ROWS <= held.nbytes <= high * ROWS + begun
    least = table_bytes(table, dtype, ROWS, PARTITIONS)
    assert low * ROWS <= least <= held.nbytes + begun


def test_a_node_needs_bytes_for_its_partitions_and_no_more_rows_than_the_capacity() -> (
    None
):
    table, of_row = settings(), row_bytes(settings(), "float32").stored
    whole, half = (table_bytes(table, "float32", 10**6, n) for n in (4, 2))
    assert 0.99 < 2 * half / whole < 1.01
    bounded = settings(capacity=PARTITIONS * CHUNK)
    index = PARTITIONS * 16 * int(CHUNK / 0.7)
    expected = PARTITIONS * CHUNK * of_row + index
    assert table_bytes(bounded, "float32", 10**6, PARTITIONS) == expected


def test_rows_share_no_more_cache_lines_than_they_have_to() -> None:
    lengths = [row_length(count, 4) for count in (1, 3, 4, 9, 16, 17, 40)]
    assert lengths == [1, 4, 4, 16, 16, 32, 48]
