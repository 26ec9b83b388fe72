"""Saves of changed rows, with the removed keys, keep a copy of a table up to date."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.errors import RunError
from placer.plan.settings.sparse.table import Always, Bloom, Count, Forgetting
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.tables.sparse import removed
from placer.tables.sparse.table import SparseTable

KEYS = 120


def make(**more):
    chosen = Settings(name="table", dim=3, rule="adagrad", partitions=4, **more)
    return SparseTable(chosen, 1, "float64", memory=1 << 24)


def push(table, keys, step):
    random = np.random.default_rng(step)
    table.push(
        np.array(keys, np.uint64),
        random.standard_normal((len(keys), table.settings.dim)),
        learning_rate=0.1,
        step=step,
    )


def rows_of(table):
    rows = {}
    for partition in range(table.settings.partitions):
        saved = table.save_partition(partition)
        values = saved["values"][:, : table.settings.dim]
        rows |= zip(saved["keys"].tolist(), map(tuple, values.tolist()), strict=True)
    return rows


def rows_in(arrays):
    return zip(
        arrays["keys"].tolist(), map(tuple, arrays["values"].tolist()), strict=True
    )


ADMITS = st.sampled_from([Always(), Count(2), Bloom(2, 512)])
ACTIONS = st.lists(
    st.sampled_from(["push"] * 4 + ["forget", "shrink", "publish", "publish"]),
    min_size=8,
    max_size=40,
)


@given(ADMITS, st.sampled_from([None, 40]), st.integers(0, 2**32), ACTIONS)
@settings(derandomize=True, deadline=None, max_examples=20)
def test_a_copy_follows_a_table_that_changes_while_its_rows_are_read(
    admit, capacity, seed, actions
):
    random = np.random.default_rng(seed)
    forget = Forgetting(every=2, unseen_steps=3)
    table = make(admit=admit, capacity=capacity, forget=forget)
    table.record_removed()
    copy, since, step = {}, None, 0

    def act(action):
        nonlocal step
        step += 1
        if action == "push":
            push(table, random.permutation(KEYS)[: random.integers(0, 60)], step)
        elif action == "forget":
            table.forget(step)
        else:
            table.shrink(step)

    for number, action in enumerate(actions):
        if action != "publish":
            act(action)
            continue
        expected, gone = rows_of(table), table.take_removed()
        assert not gone.is_too_many
        assert not {*gone.keys.tolist()} & expected.keys()
        for key in gone.keys.tolist():
            copy.pop(key, None)
        begun = step
        with table.begin_save(patience=0.0, since=since, values_only=True) as save:
            for after in actions[number + 1 : number + 4]:
                if after != "publish":
                    act(after)
            for _, arrays in save.partitions():
                copy.update(rows_in(arrays))
        assert copy == expected
        since = begun + 1


def test_a_delta_has_the_rows_seen_since_a_step():
    table = make()
    for step in (1, 2, 3):
        push(table, range(10 * step, 10 * step + 15), step)
    with table.begin_save(since=3, values_only=True) as save:
        saved = dict(save.partitions())
    assert saved[0].keys() == {"keys", "values"}
    keys = np.concatenate([each["keys"] for each in saved.values()])
    assert sorted(keys.tolist()) == [*range(30, 45)]


def test_steps_wrap_around_in_deltas():
    table = make()
    push(table, range(5), 2**32 - 1)
    push(table, range(5, 9), 2**32 + 1)
    with table.begin_save(since=2**32, values_only=True) as save:
        keys = [each["keys"] for _, each in save.partitions()]
    assert sorted(np.concatenate(keys).tolist()) == [5, 6, 7, 8]


def test_too_many_removed_keys_are_not_recorded(monkeypatch):
    monkeypatch.setattr(removed, "LEAST", 8)
    table = make(forget=Forgetting(every=1, unseen_steps=1))
    table.record_removed()
    before = table.nbytes
    push(table, range(200), 1)
    push(table, range(100, 200), 3)
    table.forget(3)
    assert table.has_too_many_removed
    taken = table.take_removed()
    assert taken.is_too_many
    assert not taken.keys.size
    push(table, range(104, 200), 5)
    grown = table.nbytes
    table.forget(5)
    assert table.nbytes == grown + 8 * 4 > before
    assert table.take_removed().keys.tolist() == [100, 101, 102, 103]
    assert table.nbytes == grown


def test_a_removed_key_with_a_new_row_is_not_removed():
    table = make(forget=Forgetting(every=1, unseen_steps=1))
    table.record_removed()
    push(table, range(10), 1)
    push(table, range(5, 10), 3)
    table.forget(3)
    push(table, [2], 4)
    assert table.take_removed().keys.tolist() == [0, 1, 3, 4]


def test_removed_keys_and_steps_need_their_settings():
    table = make()
    with pytest.raises(RunError, match="it records no removed keys"):
        table.take_removed()
    with pytest.raises(ValueError, match="'since' needs 'values_only'"):
        table.begin_save(since=3)
