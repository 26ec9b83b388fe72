"""The parts of a node that look up rows of sparse tables and update them, without a node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from placer.channel.in_process import memory_channels
from placer.channel.interface import Key
from placer.errors import RunError
from placer.plan.plan import Edge, EdgeValue, SparseTable
from placer.plan.settings.sparse.table import Forgetting, Scoring
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.plan.settings.training.update_modes import Async
from placer.runtime.exchange.row_exchange import AskedKeys, PartsOfRows, RowExchange
from placer.runtime.exchange.worker_messages import WorkerMessage
from placer.runtime.node.collected_keys import CollectedKeys
from placer.runtime.node.learning_rates import LearningRates
from placer.runtime.node.position import Position
from placer.runtime.node.row_lookups import RowLookups
from placer.runtime.node.row_pushes import RowPushes
from placer.runtime.node.tables_of_keys import TablesOfKeys
from placer.tables.key_sums import KeyPart, KeySums, Statistic
from placer.tables.sparse import key_sums
from placer.tables.sparse.table import SparseTable as HeldTable

WORKER, SERVER = "worker:0", "ps:0"
DIM = 2
SETTINGS = Settings(
    name="emb", dim=DIM, partitions=2, score=Scoring(), forget=Forgetting(every=1)
)
PLANNED = {
    name: SparseTable(settings=SETTINGS, dtype="float32", holders=(SERVER,))
    for name in ("emb", "other")
}
EDGES = {
    number: Edge(number, (source,), (target,), (value,), 0, exchange=kind)
    for number, source, target, kind, value in [
        (
            1, WORKER, SERVER, "ask_rows",
            EdgeValue(
                "k", "k", "key", ("keys",), ("R", "R"), table="emb",
                counted=("scores", "times"),
                inputs=("ids", "clicks", "seconds"),
            ),
        ),
        (
            2, SERVER, WORKER, "give_rows",
            EdgeValue("r", "r", "float32", ("keys", DIM), ("R", "R"), table="emb"),
        ),
        (
            3, WORKER, SERVER, "push_rows",
            EdgeValue("g", "g", "float32", ("keys", DIM), ("R", "R"), table="emb"),
        ),
    ]
}  # fmt: skip
IDS = {1: [[7, 0], [9, 7]], 2: [[9, 5], [0, 0]]}
"""The ids of two rows in each step; 0 is padding."""


def rows_of(step):
    """Return what the worker reads in a step."""
    return {
        "ids": np.array(IDS[step]),
        "clicks": np.array([0, step], np.float32),
        "seconds": np.array([step, 10 * step], np.uint32),
    }


def collect(keys, step):
    read = rows_of(step)
    found, positions = keys.collect(
        ("emb",),
        [read["ids"]],
        (0,),
        {("emb", "click"): read["clicks"], ("emb", "time"): read["seconds"]},
    )
    return found, positions


def make_lookups(channels, node, position):
    exchange = RowExchange(node, channels[node], EDGES, PLANNED)
    tables = {"emb": HeldTable(SETTINGS, 3, memory=1 << 24)} if node == SERVER else {}
    keys = CollectedKeys(PLANNED, position)
    return RowLookups(position, exchange, tables, keys)


def test_keys_that_are_collected_ahead_are_those_of_their_step():
    keys = CollectedKeys(PLANNED, Position(step=1, last_step=2))
    first, positions = collect(keys, 1)
    assert_array_equal(
        first.keys[positions], np.where(positions < 0, first.keys[-1], IDS[1])
    )
    assert_array_equal(positions < 0, [[False, True], [False, False]])
    following = rows_of(2)
    (ahead,) = keys.collect_ahead(EDGES[1], following.__getitem__)
    alone, places = collect(CollectedKeys(PLANNED, Position(step=2)), 2)
    assert_array_equal(ahead.keys, alone.keys)
    assert_array_equal(ahead.part.occurrences, alone.part.occurrences)
    for each, other in zip(ahead.part.statistics, alone.part.statistics, strict=True):
        assert each[:2] == other[:2]
        assert_array_equal(each.values, other.values)
        assert each.now == other.now == (20 if each.what == "times" else 0)
    assert len(ahead.part.statistics) == 2
    keys.position.enter_evaluation(1)
    assert collect(keys, 1)[0] is not ahead
    keys.position.enter_step(2, 1, 1, 2)
    found, positions = collect(keys, 2)
    assert found is ahead
    assert_array_equal(positions, places)
    assert collect(keys, 2)[0] is not ahead  # they are used once


def test_keys_of_a_step_that_is_skipped_are_collected_again():
    keys = CollectedKeys(PLANNED, Position(step=1, last_step=3))
    collect(keys, 1)
    (ahead,) = keys.collect_ahead(EDGES[1], rows_of(2).__getitem__)
    keys.position.enter_step(3, 1, 2, 2)
    assert collect(keys, 1)[0] is not ahead


def test_keys_ahead_are_collected_like_those_of_the_first_lookup_of_a_step():
    keys = CollectedKeys(PLANNED, Position(step=1, last_step=2))
    collect(keys, 1)
    keys.collect(("emb",), [np.arange(3), np.arange(3)])  # computed keys
    (ahead,) = keys.collect_ahead(EDGES[1], rows_of(2).__getitem__)
    alone, _ = collect(CollectedKeys(PLANNED, Position(step=2)), 2)
    assert_array_equal(ahead.keys, alone.keys)


def test_the_keys_of_tables_over_the_same_keys_are_merged_once(monkeypatch):
    merged = []
    number = key_sums.number_keys
    monkeypatch.setattr(
        key_sums, "number_keys", lambda keys: merged.append(keys) or number(keys)
    )
    totals = []
    for microbatch in (1, 2):
        parts = [sums(1.0, 1.0, keys=keys).part for keys in ((5, 6), (6, microbatch))]
        asked = AskedKeys(tuple(parts))
        rows = [
            PartsOfRows(tuple(np.full((2, dim), i + dim) for i in range(2)))
            for dim in (1, 4)
        ]
        totals.append(RowPushes.sum_by_key([asked, *rows]))
    narrow, wide = (first + second for first, second in zip(*totals, strict=True))
    assert narrow.part is wide.part
    assert len(merged) == 3  # two microbatches, and their sum
    assert_array_equal(wide.part.keys, [5, 6, 1, 2])
    assert_array_equal(wide.part.occurrences, [2, 4, 1, 1])
    assert_array_equal(wide.gradients[:, 0], [8, 18, 5, 5])
    assert_array_equal(narrow.gradients[:, 0], [2, 6, 2, 2])


@pytest.mark.parametrize(
    ("forced", "numbers"), [(None, (1, 1)), (0, (0, 0)), (3, (3, 1))]
)
def test_all_rows_of_a_batch_have_sizes_of_one_number(forced, numbers):
    keys = CollectedKeys(PLANNED, Position(step=1), forced)
    few, _ = keys.collect(("emb",), [np.zeros(2000, np.int64)])
    many, _ = keys.collect(("other",), [np.arange(5000) % 2000])
    keys.choose_sizes()
    for each, number in zip((many, few), numbers, strict=True):
        assert each.size == each.sizes[number], each.sizes
    assert keys.most_sizes == len(many.sizes)


def test_rows_are_asked_for_ahead_once_and_not_after_the_last_step(monkeypatch):
    sent, send_keys = [], RowExchange.send_keys

    def note(self, key, keys):
        sent.append(key)
        send_keys(self, key, keys)

    monkeypatch.setattr(RowExchange, "send_keys", note)
    channels = memory_channels([WORKER, SERVER], deadline=10)
    worker, server = (
        make_lookups(channels, node, Position(step=1, last_step=2))
        for node in (WORKER, SERVER)
    )
    for step in (1, 2):
        for each in worker, server:
            each.position.enter_step(step, 1, step - 1, 2)
        keys, _ = collect(worker.keys, step)
        worker.send_keys(1, [keys])
        (asked,) = server.receive_keys(1)
        assert_array_equal(asked.parts[0].keys, keys.keys)
        assert bool(asked.found) == (step == 2)
        (rows,) = server.look_up(("emb",), asked)
        server.send_rows(2, [rows])
        (received,) = worker.receive_rows(2, [keys])
        assert_array_equal(received[: keys.keys.size], rows.parts[0])
        assert not received[keys.keys.size :].any()
        worker.send_keys_ahead(1, rows_of(2).__getitem__)
        server.receive_keys_ahead(1)
    assert sent == [Key(1, 1), Key(1, 2)]


def test_one_of_two_tables_has_its_own_rows_of_keys_that_were_found_ahead():
    channels = memory_channels([SERVER], deadline=10)
    lookups = make_lookups(channels, SERVER, Position(step=1, last_step=2))
    tables = {name: HeldTable(SETTINGS, 3, memory=1 << 24) for name in PLANNED}
    keys = np.array([5, 6], np.uint64)
    tables["other"].push(keys, np.ones((2, DIM), np.float32), learning_rate=0.5, step=1)
    lookups.tables = tables
    part = KeyPart(keys, np.ones(2, np.uint32), tables=("emb", "other"))
    found = TablesOfKeys([*tables.values()]).find(keys)
    (rows,) = lookups.look_up(("other",), AskedKeys((part,), (found,)))
    assert_array_equal(rows.parts[0], np.full((2, DIM), -0.5))


def make_pushes(rates, **more):
    position = Position(step=1, last_step=9)
    channels = memory_channels([WORKER, SERVER], deadline=10)
    exchange = RowExchange(SERVER, channels[SERVER], EDGES, PLANNED)
    table = HeldTable(SETTINGS, 3, memory=1 << 24)
    return RowPushes(
        position,
        exchange,
        {"emb": table},
        LearningRates(
            position, {"emb": rates.__getitem__}, {"emb": Async(staleness_scale=True)}
        ),
        **more,
    )


def sums(*values, keys=(5, 6)):
    counts = np.ones(len(keys), np.uint32)
    part = KeyPart(np.array(keys, np.uint64), counts, tables=("emb",))
    gradients = np.repeat(np.array(values, np.float32), DIM).reshape(-1, DIM)
    return KeySums(part, gradients)


def update(pushes, total, message=None):
    pushes.update(("emb",), [total], [None], [None], message)


def values_of(pushes, keys=(5, 6)):
    return pushes.tables["emb"].pull(np.array(keys, np.uint64))[:, 0]


def test_an_update_has_the_rate_of_its_step_or_message():
    pushes = make_pushes([0.5, 0.25, 0.125])
    pushes.update(("emb",), [sums(1.0, -4.0)], [2.0], [2.0])
    assert_array_equal(values_of(pushes), [-1.0, 2.0])
    message = WorkerMessage(3, WORKER, 1, step=3, staleness=1, least=2)
    update(pushes, sums(1.0, 1.0), message)
    assert_array_equal(values_of(pushes), [-1.0625, 1.9375])


def test_a_table_forgets_after_each_step_once():
    pushes = make_pushes([0.5] * 9)
    swept = []
    pushes.tables["emb"].forget = lambda step, now: swept.append((step, now))
    pushes.resume(2)
    times = Statistic("times", ("emb",), np.array([4, 30], np.uint32), now=30)
    part = replace(sums(1.0, 1.0).part, statistics=[times])
    for least in (4, 4, 5):
        message = WorkerMessage(3, WORKER, 1, step=7, least=least)
        update(pushes, KeySums(part, np.ones((2, DIM), np.float32)), message)
    assert swept == [(3, 30), (4, 30), (5, 30)]


def test_gradients_that_are_not_finite_are_dropped_with_one_warning():
    warnings = []
    pushes = make_pushes([0.5] * 9, drops_not_finite=True, on_warning=warnings.append)
    for _ in range(2):
        update(pushes, sums(np.nan, 1.0))
    assert_array_equal(values_of(pushes), [0.0, -1.0])
    (warning,) = warnings
    assert "the gradients of 1 of 2 keys are not finite in step 1" in warning
    strict = make_pushes([0.5])
    with pytest.raises(RunError, match="not finite"):
        update(strict, sums(np.nan, 1.0))


@pytest.mark.parametrize("rows", [np.zeros((3, DIM), np.float32), np.zeros((2, DIM))])
def test_gradients_that_are_not_of_the_keys_are_errors(rows):
    pushes, part = make_pushes([0.5]), sums(1.0, 1.0).part
    pieces = iter([(1, 0, rows.reshape(-1))])
    message = WorkerMessage(3, WORKER, 1, parts=(pieces,), keys=[part])
    with pytest.raises(RunError, match=WORKER):
        pushes.of_message(message)
