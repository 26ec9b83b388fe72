"""Tables that share an index have the bits of tables with an index of their own."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from numpy.testing import assert_array_equal

from placer.errors import RunError
from placer.plan.settings.sparse.shared_index import shares_index
from placer.plan.settings.sparse.table import (
    Always,
    Bloom,
    Count,
    Forgetting,
    Probability,
    Score,
    Scoring,
)
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.tables.sparse.table import SparseTable, Update, push_together

KEYS = 120
COMMON = {"partitions": 4}


def made(chosen, *, shares):
    """Return a table of width 1 and one of width 3, and a function that pushes to both."""
    wide = replace(chosen, name="deep", dim=3, rule="rowwise_adam")
    first = SparseTable(chosen, 1, "float64", 1 << 24)
    second = SparseTable(
        wide, 1, "float64", 1 << 24, index_of=first if shares else None
    )
    tables = [first, second]

    def push(keys, step, seed, **more):
        random = np.random.default_rng([seed, step])
        count = len(keys)
        updates = [
            Update(random.standard_normal((count, t.settings.dim)), 0.1, 0.5)
            for t in tables
        ]
        if "bad" in more:
            updates[more.pop("bad")].gradients[0] = np.nan
        facts = {
            "occurrences": random.integers(1, 3, count).astype(np.uint32),
            "scores": random.integers(0, 3, count).astype(np.float32) / 4,
            "times": np.full(count, float(step)),
            **more,
        }
        keys = np.array(keys, np.uint64)
        if shares:
            return push_together(tables, keys, updates, step=step, **facts)
        return [
            pushed
            for table, update in zip(tables, updates, strict=True)
            for pushed in push_together([table], keys, [update], step=step, **facts)
        ]

    return tables, push


def partitions_of(table):
    return [table.save_partition(p) for p in range(table.settings.partitions)]


def check_same(saved, expected):
    assert saved.keys() == expected.keys()
    for name, array in saved.items():
        if name.startswith("entry"):
            array = array[np.argsort(saved["entry_keys"])]
            order = np.argsort(expected["entry_keys"])
            assert_array_equal(array, expected[name][order], name)
        else:
            assert_array_equal(array, expected[name], name)


@st.composite
def tables(draw):
    admit = draw(st.sampled_from([Always(), Count(2), Bloom(2, 512), Score(0.5)]))
    scored = isinstance(admit, Score) or draw(st.booleans())
    return Settings(
        name="wide",
        dim=1,
        rule="adagrad",
        init=("uniform", (-1.0, 1.0)),
        admit=admit,
        forget=Forgetting(
            every=2,
            unseen_steps=draw(st.sampled_from([None, 2])),
            unseen_seconds=draw(st.sampled_from([None, 3])),
            score_below=0.3 if scored else None,
        ),
        score=Scoring(decay=draw(st.sampled_from([1.0, 0.5]))) if scored else None,
        index="compact" if isinstance(admit, Bloom) else "wide",
        **COMMON,
    )


ACTIONS = st.lists(
    st.sampled_from(["push"] * 5 + ["bad", "forget", "forget", "shrink", "save"]),
    min_size=5,
    max_size=25,
)


@given(tables(), st.integers(0, 2**32), ACTIONS)
@settings(derandomize=True, deadline=None, max_examples=20)
def test_each_array_is_that_of_separate_tables(chosen, seed, actions):
    """Also of saves that are read while the tables change, and after a load."""
    shared, push = made(chosen, shares=True)
    separate, push_each = made(chosen, shares=False)
    random, step = np.random.default_rng(seed), 0

    def act(action):
        nonlocal step
        step += 1
        keys = random.permutation(KEYS)[: random.integers(1, 60)]
        if action in ("push", "bad"):
            more = {"bad": step % 2, "drop_not_finite": True} if action == "bad" else {}
            assert push(keys, step, seed, **more) == push_each(keys, step, seed, **more)
            for table in (*shared, *separate):
                table.note_time(step)
        for table in (*shared, *separate):
            if action == "forget":
                table.forget(step, step)
            elif action == "shrink":
                table.shrink(step, step)

    for number, action in enumerate(actions):
        if action != "save":
            act(action)
            continue
        expected = [partitions_of(table) for table in separate]
        saves = [table.begin_save(memory=1 << 20, patience=0.0) for table in shared]
        for after in actions[number + 1 : number + 4]:
            if after != "save":
                act(after)
        for save, whole in zip(saves, expected, strict=True):
            with save:
                for partition, saved in save.partitions():
                    check_same(saved, whole[partition])
    for own, other in zip(shared, separate, strict=True):
        for one, two in zip(partitions_of(own), partitions_of(other), strict=True):
            check_same(one, two)
        keys = np.arange(KEYS, dtype=np.uint64)
        assert_array_equal(own.pull(keys), other.pull(keys))
        mine, theirs = own.statistics(), other.statistics()
        assert (mine.rows, mine.counted, mine.forgotten, mine.admitted) == (
            theirs.rows,
            theirs.counted,
            theirs.forgotten,
            theirs.admitted,
        )
    again, _ = made(chosen, shares=True)
    for loaded, own in zip(again, separate, strict=True):
        for partition, saved in enumerate(partitions_of(own)):
            assert loaded is again[0] or loaded.has_keys_of(partition, saved)
            loaded.load_partition(partition, saved)
        for partition, saved in enumerate(partitions_of(own)):
            check_same(loaded.save_partition(partition), saved)


def test_a_partition_with_other_keys_or_counts_is_told():
    chosen = Settings(name="wide", dim=1, **COMMON)
    separate, push = made(chosen, shares=False)
    push(range(50), 1, 0)
    shared, _ = made(chosen, shares=True)
    shared[0].load_partition(0, separate[0].save_partition(0))
    saved = separate[1].save_partition(0)
    assert shared[1].has_keys_of(0, saved)
    fewer = {n: a[1:] if a.size else a for n, a in saved.items()}
    assert not shared[1].has_keys_of(0, fewer)
    assert not shared[1].has_keys_of(0, {**saved, "count": saved["count"] + 1})


def test_tables_that_share_an_index_are_pushed_together():
    chosen = Settings(name="wide", dim=1, **COMMON)
    (first, second), _ = made(chosen, shares=True)
    with pytest.raises(AssertionError, match="are pushed together"):
        first.push(
            np.arange(3, dtype=np.uint64), np.ones((3, 1)), learning_rate=1, step=1
        )
    assert second.rows == 0


def test_an_error_changes_no_table():
    (first, second), push = made(Settings(name="wide", dim=1, **COMMON), shares=True)
    push(range(20), 1, 0)
    before = [partitions_of(table) for table in (first, second)]
    with pytest.raises(RunError, match="table deep"):
        push(range(20), 2, 0, bad=1)
    for table, whole in zip((first, second), before, strict=True):
        for one, two in zip(partitions_of(table), whole, strict=True):
            check_same(one, two)


def test_the_index_counts_once():
    chosen = Settings(name="wide", dim=1, **COMMON)
    shared, push = made(chosen, shares=True)
    separate, push_each = made(chosen, shares=False)
    push(range(5000), 1, 0)
    push_each(range(5000), 1, 0)
    assert shared[0].nbytes == separate[0].nbytes
    index_and_keys = separate[1].nbytes - shared[1].nbytes
    assert index_and_keys > 16 * 5000


@pytest.mark.parametrize(
    ("change", "shares"),
    [
        ({"dim": 5, "rule": "adam"}, True),
        ({"admit": Count(3)}, False),
        ({"capacity": 100}, False),
        ({"forget": Forgetting(unseen_steps=3)}, False),
        ({"index": "compact"}, False),
        ({"score": Scoring()}, False),
    ],
)
def test_tables_with_the_same_rules_share_an_index(change, shares):
    first = Settings(name="a", dim=1)
    assert shares_index(first, replace(first, name="b", **change)) is shares
    by_chance = replace(first, admit=Probability(0.5))
    assert not shares_index(by_chance, by_chance)
    by_norm = replace(first, forget=Forgetting(norm_below=0.5))
    assert not shares_index(by_norm, by_norm)


def test_one_thread_reads_the_saves_of_both_tables_while_they_change():
    """A change waits for room in one save, and the reader still reads the other one."""
    shared, push = made(Settings(name="wide", dim=1, **COMMON), shares=True)
    push(range(20_000), 1, 0)
    expected = [partitions_of(table) for table in shared]
    saves = [table.begin_save(memory=1 << 19, patience=20.0) for table in shared]
    begun, problems = threading.Event(), []

    def read():
        begun.wait(30)
        try:
            for save, whole in zip(saves, expected, strict=True):
                with save:
                    for partition, saved in save.partitions():
                        check_same(saved, whole[partition])
        except BaseException as problem:
            problems.append(problem)

    reader = threading.Thread(target=read)
    reader.start()
    for step in range(2, 12):
        begun.set()
        push(range(2000 * (step - 2), 2000 * (step - 1)), step, 0)
    reader.join()
    assert not problems, problems
