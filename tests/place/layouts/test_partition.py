"""Row partitions, and conversions applied to arrays."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.place.layouts.moved_pieces import Conversion, is_local
from placer.place.layouts.partition import RowShard, part_range, row_shards

LAYOUTS = ("R", "S", "P")
NODES = (*(f"worker:{i}" for i in range(4)), *(f"heter:{i}" for i in range(3)))
COLUMNS = 3

SETTINGS = settings(derandomize=True, deadline=None, max_examples=200)
some_nodes = st.sampled_from(("worker", "heter")).flatmap(
    lambda kind: st.lists(
        st.sampled_from([node for node in NODES if node.startswith(kind)]),
        min_size=1,
        unique=True,
    ).map(sorted)
)
some_workers = st.integers(0, 5)


def rows_of(nodes, index, count, workers):
    """The numbers of the rows of one of these nodes."""
    ranges = row_shards(nodes, workers)[index].ranges(count)
    return [row for low, high in ranges for row in range(low, high)]


def distribute(layout, value, nodes, rng, workers):
    """The array of each node, for a global value in this layout."""
    if layout == "R":
        return dict.fromkeys(nodes, value)
    if layout == "S":
        return {
            node: value[rows_of(nodes, i, len(value), workers)]
            for i, node in enumerate(nodes)
        }
    parts = [rng.integers(-9, 9, value.shape) for _ in nodes[1:]]
    return dict(zip(nodes, [value - sum(parts), *parts], strict=True))


def receive(pieces, of_sources, size):
    """The array of a target, which `placer.runtime.exchange.exchange` computes alike."""
    out = np.zeros((size, COLUMNS), int)
    for piece in pieces:
        source = of_sources[piece.source]
        if piece.is_whole:
            out += source
        else:
            rows = piece.high - piece.low
            out[piece.target_offset : piece.target_offset + rows] += source[
                piece.source_offset : piece.source_offset + rows
            ]
    return out


def convert(layouts, sources, targets, count, workers=0, seed=0):
    """A random global value, and the array of each target after the conversion."""
    rng = np.random.default_rng(seed)
    value = rng.integers(-99, 99, (count, COLUMNS))
    of_sources = distribute(layouts[0], value, sources, rng, workers)
    results = {}
    conversion = Conversion(layouts, sources, targets, count, workers)
    for i, target in enumerate(targets):
        pieces = conversion.pieces_for(target)
        rows = rows_of(targets, i, count, workers)
        size = len(rows) if layouts[1] == "S" else count
        results[target] = receive(pieces, of_sources, size)
    return value, results


def combine(layout, results, count, workers=0):
    """The global value of which the targets have these arrays."""
    if layout == "S":
        whole = np.full((count, COLUMNS), 1000)
        for i, result in enumerate(results.values()):
            whole[rows_of(list(results), i, count, workers)] = result
        return whole
    if layout == "P":
        return sum(results.values())
    first, *others = results.values()
    for other in others:
        np.testing.assert_array_equal(other, first)
    return first


@SETTINGS
@given(
    st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    some_nodes,
    some_nodes,
    st.integers(0, 17),
    some_workers,
)
def test_every_conversion_keeps_the_global_value(
    layouts, sources, targets, count, workers
):
    value, results = convert(layouts, sources, targets, count, workers)
    converted = combine(layouts[1], results, count, workers)
    np.testing.assert_array_equal(converted, value)


SETS = {
    "equal": (("a", "b", "c"), ("a", "b", "c")),
    "subset": (("a", "b", "c"), ("a", "b")),
    "superset": (("a", "b"), ("a", "b", "c")),
    "overlapping": (("a", "b"), ("b", "c")),
    "disjoint": (("a", "b"), ("c", "d")),
    "from one": (("b",), ("a", "b", "c")),
    "to one": (("a", "b", "c"), ("b",)),
}


@pytest.mark.parametrize("sets", SETS)
@pytest.mark.parametrize("need", LAYOUTS)
@pytest.mark.parametrize("have", LAYOUTS)
def test_conversions_between_sets_of_nodes(have, need, sets):
    sources, targets = SETS[sets]
    for count in (0, 1, 2, 7, 12):
        value, results = convert((have, need), sources, targets, count)
        np.testing.assert_array_equal(combine(need, results, count), value)


@SETTINGS
@given(st.integers(0, 1000), st.integers(1, 40))
def test_parts_are_contiguous_and_even_and_the_first_are_longer(count, parts):
    ranges = [part_range(count, i, parts) for i in range(parts)]
    assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]
    assert ranges[-1][1] == count
    sizes = [high - low for low, high in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@SETTINGS
@given(
    st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    some_nodes,
    some_nodes,
    some_workers,
)
def test_a_local_conversion_has_no_piece_from_another_node(
    layouts, sources, targets, workers
):
    conversion = Conversion(layouts, sources, targets, 60, workers)
    crossing = [
        piece
        for target in targets
        for piece in conversion.pieces_for(target)
        if piece.source != target
    ]
    assert is_local(layouts, sources, targets, workers) == (not crossing)


def test_rows_stay_where_they_are_when_the_nodes_do():
    assert is_local(("S", "S"), ("a", "b"), ("a", "b"), 0)
    assert not is_local(("S", "S"), ("a", "b"), ("b", "a"), 0)
    assert is_local(("R", "S"), ("a", "b"), ("a", "b"), 0)
    assert is_local(("R", "P"), ("a", "b"), ("a", "b"), 0)
    assert is_local(("S", "P"), ("a", "b"), ("a", "b"), 0)
    assert not is_local(("P", "R"), ("a", "b"), ("a",), 0)


def test_a_sum_is_in_the_order_of_its_sources():
    for sources in permutations("abc"):
        pieces = Conversion(("P", "R"), sources, ("a",), 4, 0).pieces_for("a")
        assert [piece.source for piece in pieces] == list(sources)


def test_a_replica_is_used_where_it_is():
    conversion = Conversion(("R", "R"), ("a", "b"), ("b", "c"), 4, 0)
    (piece,) = conversion.pieces_for("b")
    assert piece.source == "b"
    (piece,) = conversion.pieces_for("c")
    assert piece.source == "a"


def test_a_replicated_value_counts_once_in_a_sum():
    conversion = Conversion(("R", "P"), ("a", "b"), ("a", "b"), 4, 0)
    pieces = {target: conversion.pieces_for(target) for target in "ab"}
    assert [len(pieces[t]) for t in "ab"] == [1, 0]


def test_a_heter_node_has_the_rows_of_its_workers_in_their_order():
    """Worker w has node w mod m."""
    assert row_shards(("heter:0", "heter:1"), 5) == (
        RowShard((0, 2, 4), 5),
        RowShard((1, 3), 5),
    )
    first, _ = row_shards(("heter:0", "heter:1"), 5)
    assert first.ranges(12) == ((0, 3), (6, 8), (10, 12))
    workers = [f"worker:{w}" for w in range(5)]
    heter = ["heter:0", "heter:1"]
    for w, worker in enumerate(workers):
        (piece,) = Conversion(("S", "S"), heter, workers, 12, 5).pieces_for(worker)
        assert piece.source == heter[w % 2]


def test_a_heter_node_beyond_the_workers_has_no_rows():
    assert row_shards(("heter:0", "heter:1", "heter:2"), 2)[2].ranges(8) == ()
