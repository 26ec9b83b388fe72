"""The table of conversions, by doing what it says with real rows."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.graph.rows import is_local, part, pieces

LAYOUTS = ("R", "S", "P")
HOSTS = ("a", "b", "c", "d", "e")
COLUMNS = 3

SETTINGS = settings(derandomize=True, deadline=None, max_examples=200)
some_hosts = st.lists(st.sampled_from(HOSTS), min_size=1, unique=True).map(sorted)


def held(layout, value, hosts, rng):
    """What each host holds of a global value that lies in this layout."""
    if layout == "R":
        return dict.fromkeys(hosts, value)
    if layout == "S":
        ranges = [part(len(value), i, len(hosts)) for i in range(len(hosts))]
        return {
            host: value[low:high]
            for host, (low, high) in zip(hosts, ranges, strict=True)
        }
    parts = [rng.integers(-9, 9, value.shape) for _ in hosts[1:]]
    return dict(zip(hosts, [value - sum(parts), *parts], strict=True))


def joined(layouts, found, of_sources, size, count):
    """A target's value, as `placer.runtime.exchange` puts it together."""
    out = np.zeros((size, COLUMNS), int)
    for piece in found:
        source = of_sources[piece.source]
        if piece.whole:
            out += source
        else:
            rows = piece.high - piece.low
            out[piece.into : piece.into + rows] += source[
                piece.offset : piece.offset + rows
            ]
    return out


def moved(layouts, sources, targets, count, seed=0):
    """The global value, and what the conversion gives each target."""
    rng = np.random.default_rng(seed)
    value = rng.integers(-99, 99, (count, COLUMNS))
    of_sources = held(layouts[0], value, sources, rng)
    results = {}
    for i, target in enumerate(targets):
        found = pieces(layouts, sources, targets, target, count)
        low, high = part(count, i, len(targets))
        size = high - low if layouts[1] == "S" else count
        results[target] = joined(layouts, found, of_sources, size, count)
    return value, results


def together(layout, results):
    """The global value that the targets hold."""
    if layout == "S":
        return np.concatenate(list(results.values()))
    if layout == "P":
        return sum(results.values())
    first, *others = results.values()
    for other in others:
        np.testing.assert_array_equal(other, first)
    return first


@SETTINGS
@given(
    st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    some_hosts,
    some_hosts,
    st.integers(0, 17),
)
def test_every_conversion_keeps_the_global_value(layouts, sources, targets, count):
    value, results = moved(layouts, sources, targets, count)
    np.testing.assert_array_equal(together(layouts[1], results), value)


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
def test_conversions_between_sets_of_hosts(have, need, sets):
    sources, targets = SETS[sets]
    for count in (0, 1, 2, 7, 12):
        value, results = moved((have, need), sources, targets, count)
        np.testing.assert_array_equal(together(need, results), value)


@SETTINGS
@given(st.integers(0, 1000), st.integers(1, 40))
def test_parts_are_contiguous_and_even_with_the_first_longer(count, parts):
    ranges = [part(count, i, parts) for i in range(parts)]
    assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])]
    assert ranges[-1][1] == count
    sizes = [high - low for low, high in ranges]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@SETTINGS
@given(
    st.tuples(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS)),
    some_hosts,
    some_hosts,
)
def test_a_local_conversion_takes_nothing_from_another_host(layouts, sources, targets):
    count = 60
    crossing = [
        piece
        for target in targets
        for piece in pieces(layouts, sources, targets, target, count)
        if piece.source != target
    ]
    assert is_local(layouts, sources, targets) == (not crossing)


def test_rows_stay_where_they_are_when_the_hosts_do():
    assert is_local(("S", "S"), ("a", "b"), ("a", "b"))
    assert not is_local(("S", "S"), ("a", "b"), ("b", "a"))
    assert is_local(("R", "S"), ("a", "b"), ("a", "b"))
    assert is_local(("R", "P"), ("a", "b"), ("a", "b"))
    assert is_local(("S", "P"), ("a", "b"), ("a", "b"))
    assert not is_local(("P", "R"), ("a", "b"), ("a",))


def test_a_sum_is_made_in_the_order_of_its_sources():
    for sources in permutations("abc"):
        found = pieces(("P", "R"), sources, ("a",), "a", 4)
        assert [piece.source for piece in found] == list(sources)


def test_a_replica_takes_its_own_copy():
    (piece,) = pieces(("R", "R"), ("a", "b"), ("b", "c"), "b", 4)
    assert piece.source == "b"
    (piece,) = pieces(("R", "R"), ("a", "b"), ("b", "c"), "c", 4)
    assert piece.source == "a"


def test_a_replicated_value_counts_once_in_a_sum():
    found = {t: pieces(("R", "P"), ("a", "b"), ("a", "b"), t, 4) for t in "ab"}
    assert [len(found[t]) for t in "ab"] == [1, 0]
