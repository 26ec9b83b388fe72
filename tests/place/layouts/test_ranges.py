"""Flat ranges: which elements of a value each node has."""

from hypothesis import given, settings
from hypothesis import strategies as st

from placer.place.layouts.ranges import (
    ALIGNMENT,
    WHOLE_BELOW,
    Flat,
    Ranges,
    count_sent,
    pack,
)

SETTINGS = settings(derandomize=True, deadline=None, max_examples=200)
groups = st.lists(
    st.one_of(st.integers(1, 50), st.integers(3000, 20_000)), min_size=1, max_size=6
)
item_bytes = st.sampled_from((2, 4, 8))
parts = st.integers(2, 7)


def ranges_of(sizes, each, parts):
    return [
        Ranges(flat, size, each, parts)
        for flat, size in zip(pack(sizes), sizes, strict=True)
    ]


@SETTINGS
@given(groups, item_bytes, parts)
def test_the_ranges_of_a_value_are_all_of_its_elements_in_order(sizes, each, parts):
    for ranges in ranges_of(sizes, each, parts):
        at = 0
        for part in range(parts):
            low, high = ranges.of(part)
            if low < high:
                assert low == at
                at = high
        assert at == ranges.numel
        owned = [(part, *ranges.of(part)) for part in range(parts)]
        assert [*ranges.owned()] == [each for each in owned if each[1] < each[2]]


@SETTINGS
@given(groups, item_bytes, parts)
def test_values_are_divided_at_whole_lines_and_small_ones_not_at_all(
    sizes, each, parts
):
    for ranges in ranges_of(sizes, each, parts):
        owned = [*ranges.owned()]
        assert all(low * each % ALIGNMENT == 0 for _, low, _ in owned)
        if ranges.numel * each < WHOLE_BELOW:
            assert len(owned) == 1


@SETTINGS
@given(groups, item_bytes, parts)
def test_every_node_has_about_the_same_number_of_bytes(sizes, each, parts):
    share = sum(sizes) * each / parts
    for part in range(parts):
        held = 0
        for ranges in ranges_of(sizes, each, parts):
            low, high = ranges.of(part)
            held += (high - low) * each
        assert abs(held - share) <= WHOLE_BELOW


def test_only_values_at_the_boundaries_are_divided():
    ranges = ranges_of([5000] * 8, 4, parts=4)
    assert [len([*each.owned()]) for each in ranges] == [1] * 8
    ranges = ranges_of([5000] * 8, 4, parts=3)
    assert sum(len([*each.owned()]) for each in ranges) == 8 + 2


@SETTINGS
@given(groups, item_bytes, parts, st.lists(st.integers(0, 8), unique=True, min_size=1))
def test_the_elements_sent_are_those_that_a_node_lacks(sizes, each, parts, others):
    owners = [f"worker:{i}" for i in range(parts)]
    nodes = [f"worker:{i}" for i in others]
    for ranges in ranges_of(sizes, each, parts):
        expected = sum(
            high - low
            for node in nodes
            for part, low, high in ranges.owned()
            if owners[part] != node
        )
        assert count_sent(ranges, owners, nodes) == expected


def test_the_example_of_the_page_of_layouts():
    a, b, c = (
        Ranges(Flat(at, 12 * 4096), size * 4096, 4, 2)
        for at, size in ((0, 8), (8 * 4096, 2), (10 * 4096, 2))
    )
    assert a.of(0) == (0, 6 * 4096)
    assert a.of(1) == (6 * 4096, 8 * 4096)
    assert b.of(1) == c.of(1) == (0, 2 * 4096)
