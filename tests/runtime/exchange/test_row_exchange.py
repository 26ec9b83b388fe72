"""Nodes look up and push rows of a table that others share: the same rows as in one table,
whatever the number of nodes."""

import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from placer.channel.in_process import memory_channels
from placer.channel.interface import Key
from placer.errors import RunError
from placer.plan.plan import Edge, EdgeValue, SparseTable
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.runtime.exchange.row_exchange import RowExchange
from placer.tables.key_sums import Statistic
from placer.tables.sparse.batch_keys import (
    collect_keys,
    padded_sizes,
    server_partitions,
)

DIM, PARTITIONS = 3, 16
SETTINGS = Settings(name="emb", dim=DIM, partitions=PARTITIONS)


def edges(workers, servers):
    """Return the edges of one table: 1 of keys, 2 of rows, 3 of gradients."""

    def edge(number, kind, sources, targets):
        shape = ("keys",) if kind == "ask_rows" else ("keys", DIM)
        dtype = "key" if kind == "ask_rows" else "float64"
        value = EdgeValue("v", "v", dtype, shape, ("R", "R"), table="emb")
        return Edge(number, sources, targets, (value,), 0, exchange=kind)

    return {
        1: edge(1, "ask_rows", workers, servers),
        2: edge(2, "give_rows", servers, workers),
        3: edge(3, "push_rows", workers, servers),
    }


def exchanges(workers, servers):
    workers = tuple(f"worker:{i}" for i in range(workers))
    servers = tuple(f"ps:{i}" for i in range(servers))
    table = SparseTable(settings=SETTINGS, dtype="float64", holders=servers)
    channels = memory_channels([*workers, *servers], deadline=30)
    return {
        name: RowExchange(name, channels[name], edges(workers, servers), {"emb": table})
        for name in (*workers, *servers)
    }


def collect(ids, servers):
    keys, positions = collect_keys([ids], servers, PARTITIONS)
    keys.choose_size(keys.least_size)
    return keys, positions[0]


def row_of(keys):
    """A row of each key, as a server would have it."""
    return np.stack([keys.astype(np.float64) * (1 + j) for j in range(DIM)], axis=1)


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 1), (2, 3)])
def test_each_worker_gets_the_rows_of_its_keys(workers, servers):
    nodes = exchanges(workers, servers)
    random = np.random.default_rng(0)
    ids = [random.integers(0, 40, 24).astype(np.uint64) for _ in range(workers)]
    pushed, failures = {}, []

    def serve(name):
        try:
            node = nodes[name]
            (asked,) = node.receive_keys(Key(1, 1))
            parts = tuple(row_of(part.keys) for part in asked.parts)
            node.send_rows(Key(2, 1), [type(asked_rows)(parts)])
            (gradients,) = node.receive_gradients(Key(3, 1))
            pushed[name] = asked, gradients
        except BaseException as error:
            failures.append(error)

    from placer.runtime.exchange.row_exchange import PartsOfRows

    asked_rows = PartsOfRows(())
    threads = [
        threading.Thread(target=serve, args=(f"ps:{i}",)) for i in range(servers)
    ]
    for thread in threads:
        thread.start()
    collected = []
    for i in range(workers):
        keys, positions = collect(ids[i], servers)
        nodes[f"worker:{i}"].send_keys(Key(1, 1), [keys])
        collected.append((keys, positions))
    for i, (keys, positions) in enumerate(collected):
        (rows,) = nodes[f"worker:{i}"].receive_rows(Key(2, 1), [keys])
        assert rows.shape == (keys.size, DIM)
        assert_array_equal(rows[positions], row_of(ids[i]))
        nodes[f"worker:{i}"].send_gradients(Key(3, 1), [keys], [2 * rows])
    for thread in threads:
        thread.join()
    assert not failures
    for asked, gradients in pushed.values():
        for part, rows in zip(asked.parts, gradients.parts, strict=True):
            assert_allclose(rows, 2 * row_of(part.keys))


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ([np.zeros(2, np.int64), np.ones(2, np.uint32)], "malformed"),
        ([np.zeros(2, np.uint64), np.ones(3, np.uint32)], "malformed"),
        ([np.zeros(2, np.uint64), np.zeros(2, np.uint32)], "malformed"),
        (
            [np.arange(99, dtype=np.uint64), np.ones(99, np.uint32)],
            "belong to other nodes",
        ),
        ([np.zeros(2, np.uint64)], "does not fit the build"),
    ],
)
def test_keys_that_are_not_those_of_the_node_are_refused(message, problem):
    nodes = exchanges(1, 2)
    nodes["worker:0"].channel.send("ps:0", Key(1, 1), message)
    with pytest.raises(RunError, match=problem):
        nodes["ps:0"].receive_keys(Key(1, 1))


def test_tables_over_the_same_keys_have_their_own_statistics():
    """Those that tables share are sent once."""
    both, one = ("emb", "other"), ("other",)
    value = EdgeValue(
        "k", "k", "key", ("keys",), ("R", "R"),
        table="emb", others=one, counted=("scores", "times"), counted_for=(both, one),
    )  # fmt: skip
    edge = Edge(1, ("worker:0",), ("ps:0",), (value,), 0, exchange="ask_rows")
    planned = SparseTable(settings=SETTINGS, dtype="float64", holders=("ps:0",))
    channels = memory_channels(["worker:0", "ps:0"], deadline=30)
    worker, server = (
        RowExchange(name, channels[name], {1: edge}, dict.fromkeys(both, planned))
        for name in ("worker:0", "ps:0")
    )
    of_rows = [
        Statistic("scores", both, np.array([1.0, 0.5])),
        Statistic("times", one, np.array([7, 9])),
    ]
    ids = np.array([[4, 5], [5, 6]])
    keys, _ = collect_keys([ids], 1, PARTITIONS, (), of_rows, both)
    worker.send_keys(Key(1, 1), [keys])
    ((part,),) = (asked.parts for asked in server.receive_keys(Key(1, 1)))
    assert part.tables == both
    assert_array_equal(part.keys, [4, 5, 6])
    for name in both:
        scores = part.find("scores", name)
        assert_array_equal(scores.values, [1.0, 1.5, 0.5])
    times = part.find("times", "other")
    assert_array_equal(times.values, [7, 9, 9])
    assert times.now == 9
    assert part.find("times", "emb") is None


def test_rows_of_another_width_are_refused():
    nodes = exchanges(1, 1)
    keys, _ = collect(np.arange(4, dtype=np.uint64), 1)
    nodes["ps:0"].channel.send("worker:0", Key(2, 1), [np.zeros((4, DIM + 1))])
    with pytest.raises(RunError):
        nodes["worker:0"].receive_rows(Key(2, 1), [keys])


def test_keys_come_once_and_in_the_order_of_servers():
    random = np.random.default_rng(0)
    ids = [random.integers(0, 30, (5, 4)), random.integers(20, 50, 9).astype(np.int32)]
    keys, positions = collect_keys(ids, 3, PARTITIONS)
    assert np.unique(keys.keys).size == keys.keys.size
    for part, given in zip(positions, ids, strict=True):
        assert part.shape == given.shape
        assert_array_equal(keys.keys[part].astype(np.int64), given)
    assert keys.part.occurrences.sum() == sum(each.size for each in ids)
    assert keys.splits[-1] == keys.keys.size
    held = [server_partitions(i, 3, PARTITIONS) for i in range(3)]
    assert [p for each in held for p in each] == [*range(PARTITIONS)]


def test_padding_has_no_position():
    ids = np.array([7, 3, 7, -1], np.int64)
    keys, (positions,) = collect_keys([ids], 1, PARTITIONS, [7])
    assert_array_equal(positions == -1, [True, False, True, False])
    assert_array_equal(np.sort(keys.keys), np.array([3, 2**64 - 1], np.uint64))


def test_there_are_few_sizes_with_room_for_all_keys():
    assert padded_sizes(10) == (10,)
    assert padded_sizes(0) == (1,)
    assert padded_sizes(2000) == (1024, 2000)
    assert padded_sizes(13_312) == (3328, 6656, 9984, 13_312)
