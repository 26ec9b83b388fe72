"""The memory of sparse tables is a bound that nothing exceeds, and what reaches it is an
error that changes nothing."""

import errno
import mmap

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from placer.errors import RunError
from placer.plan.settings.sparse.row_bytes import table_bytes
from placer.plan.settings.sparse.table import Bloom
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.tables.sparse.memory import MemoryBudget
from placer.tables.sparse.table import SparseTable

DIM = 5


def make(memory, **settings):
    named = {"name": "emb.table", "dim": DIM, "partitions": 4} | settings
    return SparseTable(Settings(**named), 3, memory=memory)


def push(table, first, count=1000, occurrences=2):
    keys = np.arange(first, first + count, dtype=np.uint64)
    gradients = np.ones((count, table.settings.dim), np.float32)
    occurred = np.full(count, occurrences, np.uint32)
    return table.push(keys, gradients, learning_rate=0.1, step=1, occurrences=occurred)


def fill(table, steps, after=lambda: None):
    """Push new keys in so many steps."""
    for step in range(steps):
        push(table, 1000 * step)
        after()


def test_a_table_that_needs_more_than_its_memory_says_so():
    table = make(1 << 20)
    expected = r"table emb.table: [\d,]+ rows and 1,000 new rows exceed"
    with pytest.raises(RunError, match=expected) as failure:
        fill(table, 100)
    assert failure.value.hint is not None
    assert "capacity" in failure.value.hint


def test_a_push_that_needs_too_much_memory_changes_nothing():
    table = make(1 << 20, admit=Bloom(2, 1 << 10))
    before = []

    def remember():
        before[:] = [table.save_partition(p) for p in range(4)]

    with pytest.raises(RunError, match="exceed its memory"):
        fill(table, 100, remember)
    for partition, saved in enumerate(before):
        for name, array in table.save_partition(partition).items():
            assert_array_equal(array, saved[name])
    assert table.nbytes <= 1 << 20
    assert push(table, 0, occurrences=1).updated == 1000


def test_tables_of_a_server_share_its_memory():
    budget = MemoryBudget(4 << 20)
    tables = [make(budget, name=name) for name in ("a", "b")]

    def check():
        assert budget.used == sum(each.nbytes for each in tables) <= budget.total

    fill(tables[1], 5, check)
    for table in tables:
        with pytest.raises(
            RunError, match=f"table {table.settings.name}: .* exceed its"
        ):
            fill(table, 100, check)
    assert budget.used > 0.8 * budget.total
    with pytest.raises(RunError, match="even without rows, but only"):
        make(budget, name="c", partitions=1 << 16)


def test_growth_is_counted_with_the_slots_that_it_leaves():
    """The table fits before and after a partition grows, but not while it does."""
    table = make(1 << 24, partitions=2, dim=1)
    most = []

    def grow(partition, slots):
        most.append(table.nbytes + 16 * slots)
        plain(partition, slots)

    space = table._storage.slots
    plain, space._grow = space._grow, grow
    fill(table, 30)
    again = make(max(most) - 16, partitions=2, dim=1)
    with pytest.raises(RunError, match="exceed its memory"):
        fill(again, 30)
    assert again.rows < table.rows


def test_a_node_counts_the_filters_of_its_own_partitions():
    settings = Settings(name="t", dim=DIM, partitions=4, admit=Bloom(2, 64 << 20))
    part = SparseTable(settings, 3, memory=24 << 20, held=range(1, 2))
    assert part.nbytes == pytest.approx(16 << 20, rel=0.01)
    assert table_bytes(settings, "float32", 0, held=1) <= part.nbytes
    part.warm_up()
    with pytest.raises(RunError, match="bytes even without rows"):
        SparseTable(settings, 3, memory=24 << 20)


def test_a_filter_that_there_is_no_memory_for_is_an_error_of_its_table():
    with pytest.raises(RunError, match="table t: not enough memory for its Bloom"):
        SparseTable(Settings(name="t", dim=DIM, admit=Bloom(2, 1 << 60)), 3)


def test_a_kernel_needs_no_huge_pages(monkeypatch):
    class WithoutHugePages(mmap.mmap):
        def madvise(self, advice, *where):
            if advice == mmap.MADV_HUGEPAGE:
                raise OSError(errno.EINVAL, "Invalid argument")
            super().madvise(advice, *where)

    monkeypatch.setattr(mmap, "mmap", WithoutHugePages)
    table = make(1 << 24)
    fill(table, 5)
    assert table.rows == 5000
