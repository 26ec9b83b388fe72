"""Sparse tables in the warm-up."""

from __future__ import annotations

import numpy as np

from placer.config.sparse import SparseTable as Settings
from placer.runtime.program.dry_rows import FrozenRows
from placer.tables.sparse.table import SparseTable


def test_lookups_of_a_warm_up_are_not_counted() -> None:
    table = SparseTable(Settings(name="t", dim=2), 0, memory=1 << 24)
    rows, keys = FrozenRows(table), np.arange(3, dtype=np.uint64)
    out = np.full((3, 2), 7, np.float32)
    rows.pull(keys, out, rows.find(keys))
    assert not out.any()
    assert table.statistics().lookups == 0
