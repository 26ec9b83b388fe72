"""The order of rows: global batches, shuffled by a seed, without overlap."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.errors import DataError
from placer.place.layouts.partition import part_range
from placer.readers import Order


def batches_of(order, epoch):
    steps = range(order.steps_per_epoch)
    return [order.indices(epoch, step) for step in steps]


def test_an_epoch_has_each_row_once():
    batches = batches_of(Order(103, 10, True, 7, "keep"), 1)
    assert [len(b) for b in batches] == [10] * 10 + [3]
    assert sorted(np.concatenate(batches)) == list(range(103))


def test_drop_omits_the_short_batch():
    batches = batches_of(Order(103, 10, True, 7, "drop"), 1)
    assert [len(b) for b in batches] == [10] * 10
    assert len(np.unique(np.concatenate(batches))) == 100


def test_the_order_is_a_function_of_seed_and_epoch():
    first = Order(50, 50, True, 7, "drop").indices(1, 0)
    again = Order(50, 25, True, 7, "drop")
    np.testing.assert_array_equal(first, np.concatenate(batches_of(again, 1)))
    expected = np.random.Generator(np.random.Philox(key=[7, 1])).permutation(50)
    np.testing.assert_array_equal(first, expected)
    assert not np.array_equal(first, np.concatenate(batches_of(again, 2)))
    other = Order(50, 50, True, 8, "drop").indices(1, 0)
    assert not np.array_equal(first, other)
    negative = Order(50, 50, True, -1, "drop").indices(1, 0)
    assert sorted(negative) == list(range(50))


def test_without_shuffle_rows_are_in_order():
    batches = batches_of(Order(7, 3, False, 0, "keep"), 4)
    assert [b.tolist() for b in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert batches[0].dtype == np.int64


def test_an_epoch_needs_one_batch():
    with pytest.raises(DataError, match="50 rows do not fill one batch of 128"):
        Order(50, 128, True, 0, "drop")
    assert Order(50, 128, True, 0, "keep").steps_per_epoch == 1
    with pytest.raises(DataError):
        Order(0, 8, True, 0, "keep")


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 500), st.integers(1, 20))
def test_parts_cover_the_rows_evenly_and_the_first_are_longer(count, parts):
    ranges = [part_range(count, i, parts) for i in range(parts)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == count
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    sizes = [high - low for low, high in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
