"""Workers look up and push rows of a table that servers share: the same rows as in one
table, whatever the number of servers."""

import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from placer.channel.memory import memory_channels
from placer.channel.protocol import Key
from placer.config.sparse import Count
from placer.config.sparse import SparseTable as Settings
from placer.errors import RunError
from placer.runtime.program.sparse_rows import (
    SparseEdges,
    SparseLookup,
    SparseService,
)
from placer.tables.sparse.batch_keys import (
    collect_keys,
    padded_size,
    padded_sizes,
    server_partitions,
)
from placer.tables.sparse.table import SparseTable

DIM, PARTITIONS, STEPS, BATCH = 3, 16, 6, 24
INIT = ("uniform", (-1.0, 1.0))
PADDING = 7


def settings(**more):
    named = {"rule": "adagrad", "init": INIT, "partitions": PARTITIONS}
    return Settings(name="emb", dim=DIM, **(named | more))


def table(**more):
    return SparseTable(settings(**more), 1, "float64", 1 << 22)


def batches(seed=0):
    """Return the keys of each step, of shape [BATCH]: few distinct ones, and padding."""
    random = np.random.default_rng(seed)
    keys = random.integers(0, 40, (STEPS, BATCH)).astype(np.uint64)
    return np.where(keys > 30, keys * np.uint64(2**58), keys)


def gradient_of(rows):
    """A gradient that depends on the row, as that of half of its squares does."""
    return rows + 0.1


def run(workers, servers, **more):
    """Train by messages; return the tables of the servers, and the rows of each step."""
    names = [f"worker:{i}" for i in range(workers)]
    others = [f"ps:{i}" for i in range(servers)]
    channels = memory_channels([*names, *others], deadline=30)
    edges = SparseEdges(5, 6, 7, tuple(names), tuple(others))
    tables = [table(**more) for _ in others]
    seen, failures = [[None] * workers for _ in range(STEPS)], []

    def serve(i):
        service = SparseService(channels[others[i]], edges, tables[i])
        for step in range(STEPS):
            service.answer(step)
            service.update(step, 0.1)

    def work(i):
        part = BATCH // workers
        lookup = SparseLookup(
            channels[names[i]], edges, DIM, "float64", PARTITIONS, part, PADDING
        )
        for step, keys in enumerate(batches()):
            own = keys[i * part : (i + 1) * part]
            lookup.ask(step, own)
            rows, positions = lookup.rows(step)
            assert len(rows) in lookup.sizes
            seen[step][i] = rows[positions]
            gradients = np.zeros_like(rows)
            np.add.at(gradients, positions, gradient_of(rows[positions]))
            lookup.push(step, gradients)

    def guarded(function, i):
        try:
            function(i)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [
        threading.Thread(target=guarded, args=(function, i))
        for function, count in ((work, workers), (serve, servers))
        for i in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for channel in channels.values():
        channel.close()
    assert not failures
    return tables, [np.concatenate(each) for each in seen]


def plain(**more):
    """Train with one table, without messages."""
    one, seen = table(**more), []
    for step, keys in enumerate(batches()):
        rows = np.where((keys == PADDING)[:, None], 0, one.pull(keys))
        seen.append(rows)
        distinct = list(dict.fromkeys(keys[keys != PADDING].tolist()))
        gradients = np.stack(
            [gradient_of(rows[keys == key]).sum(axis=0) for key in distinct]
        )
        occurrences = [np.count_nonzero(keys == key) for key in distinct]
        one.push(
            np.array(distinct, np.uint64),
            gradients,
            learning_rate=0.1,
            step=step,
            occurrences=np.array(occurrences, np.uint32),
        )
    return one, seen


@pytest.mark.parametrize("more", [{}, {"admit": Count(3), "default": 0.25}])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_rows_are_those_of_one_table(workers, more):
    one, expected = plain(**more)
    tables, seen = run(workers, 3, **more)
    for own, other in zip(seen, expected, strict=True):
        assert_allclose(own, other, rtol=1e-12, atol=1e-15)
    assert sum(each.rows for each in tables) == one.rows


def test_bits_do_not_depend_on_the_number_of_servers():
    _, expected = run(2, 1)
    for servers in (2, 3, 5):
        _, seen = run(2, servers)
        assert_array_equal(seen, expected)


def test_a_server_has_the_keys_of_its_partitions_only():
    tables, _ = run(2, 3)
    for i, own in enumerate(tables):
        held = server_partitions(i, 3, PARTITIONS)
        for partition in range(PARTITIONS):
            keys = own.save_partition(partition)["keys"]
            assert partition in held or not keys.size


def test_keys_of_a_batch_are_in_the_order_of_servers():
    keys = batches()[0]
    batch = collect_keys(keys, 3, PARTITIONS, PADDING)
    is_key = keys != PADDING
    assert_array_equal(batch.keys[batch.positions[is_key]], keys[is_key])
    assert (batch.positions[~is_key] == batch.keys.size).all()
    assert batch.occurrences.sum() == np.count_nonzero(is_key)
    assert batch.splits[-1] == batch.keys.size == len(set(keys[is_key].tolist()))
    alone = collect_keys(keys, 1, PARTITIONS, PADDING)
    order = {key: i for i, key in enumerate(alone.keys.tolist())}
    for server in range(3):
        own = batch.keys[batch.of_server(server)].tolist()
        assert own == sorted(own, key=order.__getitem__), "in order of appearance"


def test_a_batch_of_padding_has_no_keys():
    batch = collect_keys(np.full(5, PADDING, np.int64), 2, PARTITIONS, PADDING)
    assert batch.keys.size == 0
    assert batch.positions.tolist() == [0] * 5
    negative = collect_keys(np.array([-1, 3, -1]), 2, PARTITIONS, -1)
    assert negative.keys.tolist() == [3]


@pytest.mark.parametrize("keys", [1, 7, 8, 100, 26624])
def test_a_step_has_one_of_few_sizes(keys):
    sizes = padded_sizes(keys)
    assert len(sizes) <= 8
    assert sizes[-1] == keys + 1
    for rows in range(0, keys + 1, max(1, keys // 50)):
        size = padded_size(rows, sizes)
        assert size > rows
        assert size - rows <= -(-(keys + 1) // 8)


def test_gradients_of_other_rows_are_refused():
    channels = memory_channels(["worker:0", "ps:0"], deadline=10)
    edges = SparseEdges(1, 2, 3, ("worker:0",), ("ps:0",))
    service = SparseService(channels["ps:0"], edges, table())
    lookup = SparseLookup(
        channels["worker:0"], edges, DIM, "float64", PARTITIONS, BATCH
    )
    lookup.ask(0, np.arange(4, dtype=np.uint64))
    service.answer(0)
    lookup.rows(0)
    wrong = [np.zeros((3, DIM))]
    channels["worker:0"].send("ps:0", Key(edges.gradients, 0), wrong)
    with pytest.raises(RunError, match=r"gradients from worker:0 are float64\[3, 3\]"):
        service.update(0, 0.1)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ([np.arange(4.0), np.ones(4, np.uint32)], "do not fit"),
        ([np.arange(4, dtype=np.uint64), np.ones(3, np.uint32)], "do not fit"),
        ([np.arange(4, dtype=np.uint64), np.zeros(4, np.uint32)], "do not fit"),
        ([np.arange(99, dtype=np.uint64), np.ones(99, np.uint32)], "are not all of"),
    ],
)
def test_keys_that_are_not_those_of_the_server_are_refused(message, problem):
    nodes = ["worker:0", "ps:0", "ps:1"]
    channels = memory_channels(nodes, deadline=10)
    edges = SparseEdges(1, 2, 3, ("worker:0",), ("ps:0", "ps:1"))
    service = SparseService(channels["ps:1"], edges, table())
    channels["worker:0"].send("ps:1", Key(edges.keys, 0), message)
    with pytest.raises(RunError, match=f"keys from worker:0, .* {problem}"):
        service.answer(0)
    assert service.table.rows == 0
