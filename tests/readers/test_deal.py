"""The order of rows that are read by pieces, compared with a plain model of it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dealt_rows import dealt_rows

from placer.plan.settings.data.window import Window
from placer.readers.deal import Deal
from placer.readers.order import Order


def generator(seed, epoch, *counter):
    counter = np.array([*counter, 0, 0, 0, 0][:4], np.uint64)
    key = np.array([seed, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


def split(rows, parts):
    """Divide a list into parts, the longer ones first."""
    size, longer = divmod(len(rows), parts)
    ends = np.cumsum([size + (i < longer) for i in range(parts)]).tolist()
    return [rows[a:b] for a, b in pairwise([0, *ends])]


def plain_epoch(counts, batch, window, lanes, seed, epoch, remainder="keep"):
    """Return the batches of an epoch as lists of row numbers."""
    starts = np.cumsum([0, *counts]).tolist()
    pieces = [list(range(a, b)) for a, b in pairwise(starts)]
    dealt = [
        r for i in generator(seed, epoch).permutation(len(counts)) for r in pieces[i]
    ]
    batches, tail = divmod(len(dealt), batch)
    parts = split(range(batch), lanes), split(range(tail), lanes)
    given = [batches * len(a) + len(b) for a, b in zip(*parts, strict=True)]
    drawn = []
    for lane, rows in enumerate(given):
        own, dealt = dealt[:rows], dealt[rows:]
        size, order, index = window // lanes, [], 0
        length = max(1, size * (lane + 1) // lanes)
        while own:
            now, own, length = own[:length], own[length:], size
            draw = generator(seed, epoch, 0, 0, lane + 1, index).permutation(len(now))
            order += [now[i] for i in draw]
            index += 1
        drawn.append(order)
    sizes = [batch] * batches + [tail] * (tail > 0 and remainder == "keep")
    result = []
    for size in sizes:
        rows = []
        for lane, part in enumerate(split(range(size), lanes)):
            rows += drawn[lane][: len(part)]
            del drawn[lane][: len(part)]
        result.append(rows)
    return result


def deal_of(counts, batch, window, lanes, seed=3, remainder="keep"):
    order = Order(sum(counts), batch, Window(window, lanes), seed, remainder)
    return Deal(order, tuple(counts))


def batches_of(deal, epoch):
    steps = range(deal.order.steps_per_epoch)
    return [dealt_rows(deal, epoch, step).tolist() for step in steps]


@st.composite
def deals(draw):
    counts = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12))
    lanes = draw(st.integers(1, 9))
    batch = draw(st.integers(lanes, 30))
    window = draw(st.integers(lanes, 100))
    return (
        [max(counts[0], 1), *counts[1:]],
        batch,
        window,
        lanes,
        draw(st.integers(0, 5)),
    )


@settings(derandomize=True, deadline=None)
@given(deals(), st.integers(1, 3), st.sampled_from(["keep", "drop"]))
def test_the_order_is_that_of_the_plain_model(drawn, epoch, remainder):
    counts = drawn[0]
    if remainder == "drop" and sum(counts) < drawn[1]:
        return
    deal = deal_of(*drawn, remainder=remainder)
    assert batches_of(deal, epoch) == plain_epoch(*drawn, epoch, remainder)
    if remainder == "keep":
        rows = [row for batch in batches_of(deal, epoch) for row in batch]
        assert sorted(rows) == list(range(sum(counts)))


@settings(derandomize=True, deadline=None)
@given(deals(), st.data())
def test_a_part_of_a_batch_is_found_in_its_lanes(drawn, data):
    deal = deal_of(*drawn)
    step = data.draw(st.integers(0, deal.order.steps_per_epoch - 1))
    rows = deal.order.batch_size(step)
    low = data.draw(st.integers(0, rows - 1))
    high = data.draw(st.integers(low + 1, rows))
    whole, parts = [], []
    for lane, first, stop, row in deal.lanes_of(step, 0, rows):
        whole += [(row + i, lane, first + i) for i in range(stop - first)]
    for lane, first, stop, row in deal.lanes_of(step, low, high):
        parts += [(row + i, lane, first + i) for i in range(stop - first)]
    assert [row for row, _, _ in whole] == list(range(rows))
    assert parts == whole[low:high]


def test_each_epoch_and_each_seed_has_another_order():
    deal = deal_of([10] * 12, 12, 24, 4)
    first, second = batches_of(deal, 1), batches_of(deal, 2)
    assert first != second
    assert first != batches_of(deal_of([10] * 12, 12, 24, 4, seed=4), 1)
    assert batches_of(deal, 1) == first


def test_lanes_begin_their_windows_in_different_steps():
    deal = deal_of([1000], 8, 80, 8)
    ends = [deal.window_at(lane, 0)[2] for lane in range(8)]
    assert ends == [1, 2, 3, 5, 6, 7, 8, 10]
    assert deal.window_at(0, 1) == (1, 1, 11)
    assert deal.window_at(0, 10) == (1, 1, 11)
    assert deal.window_at(0, 11) == (2, 11, 21)


@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_a_batch_has_rows_of_all_parts_of_the_source(lanes):
    deal = deal_of([50] * 20, 8, lanes * 10, lanes)
    pieces = {row // 50 for row in batches_of(deal, 1)[0]}
    assert len(pieces) >= lanes - 1
