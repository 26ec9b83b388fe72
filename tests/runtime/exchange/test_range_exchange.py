"""Reduce-scatter and all-gather of ranges: sums, order, bytes and copies."""

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from placer.channel.in_process import memory_channels
from placer.channel.interface import Key
from placer.place.layouts.ranges import pack
from placer.plan.plan import Edge, EdgeValue
from placer.runtime.exchange.exchange import Exchange

SIZES = (3, 70_001, 40, 20_000)
"""Of the values of a group: small ones, and some that are divided."""


def nodes(count):
    return tuple(f"worker:{i}" for i in range(count))


def edge(layouts, sources, targets, *, dtype="float32", sizes=SIZES, **options):
    values = tuple(
        EdgeValue(f"a{i}", f"b{i}", dtype, (size,), layouts, flat=flat)
        for i, (size, flat) in enumerate(zip(sizes, pack(sizes), strict=True))
    )
    return Edge(1 + (layouts[1] == "R"), sources, targets, values, 0, **options)


def exchanges(names, *edges):
    channels = memory_channels(names)
    by_number = {edge.id: edge for edge in edges}
    return {n: Exchange(n, channels[n], by_number, 0) for n in names}


def together(run, names):
    """Run a function of each node at the same time; return the results by node."""
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(run, names), strict=True))


def parts_of(names, dtype="float32", sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return {n: [rng.normal(size=s).astype(dtype) for s in sizes] for n in names}


def all_reduce(ends, parts, step=1):
    """Exchange the parts, and return the sums that each node gets."""

    def run(node):
        end = ends[node]
        end.send(Key(1, step), parts[node], 0)
        end.send(Key(2, step), end.receive(Key(1, step), 0), 0)
        return end.receive(Key(2, step), 0)

    return together(run, [*ends])


def ends_of(count, *, ring, **options):
    names = nodes(count)
    return exchanges(
        names,
        edge(("P", "F"), names, names, ring=ring, **options),
        edge(("F", "R"), names, names, ring=ring, **options),
    )


def in_order(parts, order):
    total = parts[order[0]].copy()
    for node in order[1:]:
        total = total + parts[node]
    return total


@pytest.mark.parametrize("count", [2, 3, 5])
def test_sums_are_made_in_the_order_of_the_nodes(count):
    ends = ends_of(count, ring=False)
    parts = parts_of(ends)
    for result in all_reduce(ends, parts).values():
        for i, total in enumerate(result):
            one = {node: values[i] for node, values in parts.items()}
            np.testing.assert_array_equal(total, in_order(one, [*ends]))


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_ring_sums_each_chunk_from_the_node_after_its_own_on(count):
    ends = ends_of(count, ring=True)
    parts = parts_of(ends)
    known = ends["worker:0"].range_edge(ends["worker:0"].edges[1])
    for result in all_reduce(ends, parts).values():
        for k, owner in enumerate(ends):
            order = [f"worker:{(k + i) % count}" for i in range(1, count + 1)]
            for i, low, high in known.of_owner[owner]:
                one = {node: values[i][low:high] for node, values in parts.items()}
                expected = in_order(one, order)
                np.testing.assert_array_equal(result[i][low:high], expected)


@pytest.mark.parametrize("ring", [False, True])
def test_each_node_sends_two_n_minus_first_parts_of_the_bytes(ring):
    count = 3
    ends = ends_of(count, ring=ring)
    all_reduce(ends, parts_of(ends))
    nbytes = 4 * sum(SIZES)
    sent = [end.channel.bytes_sent for end in ends.values()]
    assert sum(sent) == 2 * (count - 1) * nbytes
    # Small values are not divided, and others at whole lines only.
    expected = 2 * (count - 1) / count * nbytes
    assert all(abs(each - expected) < 0.01 * expected for each in sent)


@pytest.mark.parametrize("ring", [False, True])
def test_the_next_steps_have_sums_of_their_own(ring):
    ends = ends_of(3, ring=ring)
    first = parts_of(ends, seed=1)
    kept = all_reduce(ends, first, step=1)
    copies = {node: [a.copy() for a in arrays] for node, arrays in kept.items()}
    all_reduce(ends, parts_of(ends, seed=2), step=2)
    for node, arrays in kept.items():
        for array, copy in zip(arrays, copies[node], strict=True):
            np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("ring", [False, True])
def test_a_node_without_ranges_takes_part(ring):
    """One small value of three nodes is whole on one of them."""
    ends = ends_of(3, ring=ring, sizes=(5,))
    parts = parts_of(ends, sizes=(5,))
    expected = sum(values[0].astype(np.float64) for values in parts.values())
    for (total,) in all_reduce(ends, parts).values():
        np.testing.assert_allclose(total, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_added_in_float32_and_rounded_once(dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    ends = ends_of(3, ring=False, dtype=dtype)
    parts = parts_of(ends, dtype=kind)
    for result in all_reduce(ends, parts).values():
        for i, total in enumerate(result):
            wide = sum(values[i].astype(np.float32) for values in parts.values())
            np.testing.assert_array_equal(total, wide.astype(kind))


def test_parts_of_other_nodes_are_summed_at_the_owners():
    sources, targets = ("heter:0", "heter:1"), nodes(3)
    ends = exchanges(
        (*sources, *targets),
        edge(("P", "F"), sources, targets),
        edge(("F", "R"), targets, targets),
    )
    parts = parts_of(sources)

    def run(node):
        end = ends[node]
        if node in sources:
            end.send(Key(1, 1), parts[node], 0)
            return None
        end.send(Key(2, 1), end.receive(Key(1, 1), 0), 0)
        return end.receive(Key(2, 1), 0)

    results = together(run, [*ends])
    for node in targets:
        for i, total in enumerate(results[node]):
            expected = parts["heter:0"][i] + parts["heter:1"][i]
            np.testing.assert_array_equal(total, expected)


def test_chunks_of_sums_and_of_gathered_values_are_those_of_whole_arrays():
    ends = ends_of(3, ring=False)
    parts = parts_of(ends)
    whole = {i: sum(values[i] for values in parts.values()) for i in range(len(SIZES))}

    def run(node):
        end = ends[node]
        end.send(Key(1, 1), parts[node], 0)
        known = end.range_edge(end.edges[1])
        own = {i: np.zeros(high - low) for i, low, high in known.of_owner[node]}
        for name, start, views in end.receive_chunks(Key(1, 1)):
            assert len(views) == len(ends)
            own[int(name[1:])][start : start + views[0].size] = sum(views)
        sums = [own.get(i, np.zeros(0)).astype(np.float32) for i in range(len(SIZES))]
        end.send(Key(2, 1), sums, 0)
        joined = [np.zeros(size) for size in SIZES]
        for name, start, (view,) in end.receive_chunks(Key(2, 1)):
            joined[int(name[1:])][start : start + view.size] = view
        return joined

    for joined in together(run, [*ends]).values():
        for i, array in enumerate(joined):
            np.testing.assert_array_equal(array, whole[i].astype(np.float32))


def test_a_stable_value_of_one_node_is_not_copied():
    names = nodes(2)
    sizes = (20_000, 20_000)
    gather = edge(("F", "R"), names, names, sizes=sizes, stable=True)
    ends = exchanges(names, gather)
    own = {n: [np.ones(s, np.float32) * i for s in sizes] for i, n in enumerate(names)}

    def run(node):
        end = ends[node]
        known = end.range_edge(gather)
        values = [own[node][i][: known.local_size(i, node)] for i in range(2)]
        end.send(Key(2, 1), values, 0)
        return end.receive(Key(2, 1), 0)

    for result in together(run, names).values():
        for node, array in zip(names, result, strict=True):
            owned = own[node][names.index(node)]
            assert np.shares_memory(array, owned)
