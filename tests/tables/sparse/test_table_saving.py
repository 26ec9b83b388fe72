"""A save has each partition as it was when the save began, whatever the table does
meanwhile."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from placer.errors import RunError
from placer.plan.settings.sparse.table import (
    Always,
    Bloom,
    Count,
    Forgetting,
    Score,
    Scoring,
)
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.tables.sparse.table import SparseTable

KEYS = 120


def copies(table):
    return [table.save_partition(p) for p in range(table.settings.partitions)]


def check_same(saved, expected):
    """Entries without a row may come in another order."""
    assert saved.keys() == expected.keys()
    for name, array in saved.items():
        if name.startswith("entry"):
            array = array[np.argsort(saved["entry_keys"])]
            order = np.argsort(expected["entry_keys"])
            assert_array_equal(array, expected[name][order], name)
        else:
            assert_array_equal(array, expected[name], name)


def check_layout(save, partition, saved):
    found = {name: (str(array.dtype), array.shape) for name, array in saved.items()}
    assert save.layout(partition) == found


def push(table, keys, step, seed=0, times=None):
    random = np.random.default_rng([seed, step])
    shape = (len(keys), table.settings.dim)
    return table.push(
        np.array(keys, np.uint64),
        random.standard_normal(shape).astype(table.dtype),
        learning_rate=0.1,
        step=step,
        occurrences=random.integers(1, 3, len(keys)).astype(np.uint32),
        scores=random.integers(0, 3, len(keys)).astype(np.float32) / 4,
        times=times,
    )


@st.composite
def tables(draw):
    admit = draw(st.sampled_from([Always(), Count(3), Bloom(3, 512), Score(1.0)]))
    rule, dim = draw(st.sampled_from([("adagrad", 4), ("rowwise_adam", 3)]))
    scored = isinstance(admit, Score) or draw(st.booleans())
    return Settings(
        name="table",
        dim=dim,
        rule=rule,
        init=("uniform", (-1.0, 1.0)),
        partitions=4,
        admit=admit,
        forget=Forgetting(
            every=2,
            unseen_steps=draw(st.sampled_from([None, 2])),
            unseen_seconds=draw(st.sampled_from([None, 3])),
            score_below=0.3 if scored else None,
        ),
        score=Scoring(decay=draw(st.sampled_from([1.0, 0.5]))) if scored else None,
        capacity=draw(st.sampled_from([None, 30])),
        index="compact" if isinstance(admit, Bloom) else "wide",
    )


ACTIONS = st.sampled_from(["push"] * 4 + ["forget"] * 2 + ["shrink"] + ["read"] * 3)


@given(tables(), st.integers(0, 2**32), st.lists(ACTIONS, max_size=15), st.booleans())
@settings(derandomize=True, deadline=None, max_examples=50)
def test_a_save_has_what_was_there_when_it_began(chosen, seed, actions, twice):
    random = np.random.default_rng(seed)
    table = SparseTable(chosen, 1, "float64", 1 << 22)
    step = 0

    def act(action):
        nonlocal step
        step += 1
        match action:
            case "push":
                keys = random.permutation(KEYS)[: random.integers(0, 60)]
                push(table, keys, step, seed, np.full(len(keys), float(step)))
            case "forget":
                table.forget(step, step)
            case "shrink":
                table.shrink(step, step)

    for action in ["push", "push", "forget", "push"]:
        act(action)
    for _ in range(1 + twice):
        expected = copies(table)
        unread = random.permutation(chosen.partitions).tolist()
        with table.begin_save(memory=1 << 18, patience=1.0) as save:
            for action in actions:
                if action != "read":
                    act(action)
                elif unread:
                    partition = unread.pop()
                    saved = save.partition(partition)
                    check_same(saved, expected[partition])
                    check_layout(save, partition, saved)
            for partition, saved in save.partitions():
                unread.remove(partition)
                check_same(saved, expected[partition])
        assert not unread
        # What the save kept is not part of the table, and its memory is used again.
        now = copies(table)
        again = SparseTable(chosen, 1, "float64", 1 << 22)
        for partition, saved in enumerate(now):
            again.load_partition(partition, saved)
        for partition, saved in enumerate(copies(again)):
            check_same(saved, now[partition])
            assert_array_equal(table.pull(saved["keys"]), again.pull(saved["keys"]))


@pytest.mark.parametrize("admit", [Always(), Count(3), Bloom(3, 1 << 12)])
@pytest.mark.parametrize("memory", [0, 1 << 20, 1 << 24])
def test_a_save_is_read_while_another_thread_trains(admit, memory):
    chosen = Settings(
        name="table",
        dim=8,
        rule="adagrad",
        partitions=32,
        admit=admit,
        forget=Forgetting(every=32, unseen_steps=20),
        capacity=15_000,
    )
    table = SparseTable(chosen, 1, memory=1 << 26)
    random = np.random.default_rng(0)
    table.warm_up()

    def train(step):
        keys = random.permutation(40_000)[:3000]
        push(table, keys, step)
        table.forget(step)

    for step in range(30):
        train(step)
    expected = copies(table)
    save = table.begin_save(memory)
    problems = []
    begun = threading.Event()

    def read():
        try:
            begun.wait(0.0 if memory == 0 else 30)
            for partition, saved in save.partitions():
                check_same(saved, expected[partition])
        except BaseException as problem:
            problems.append(problem)
        finally:
            save.close()

    reader = threading.Thread(target=read)
    reader.start()
    train(30)
    begun.set()
    step = 31
    while reader.is_alive():
        train(step)
        step += 1
    assert not problems, problems


def make(**more):
    chosen = Settings(name="table", dim=4, rule="adagrad", partitions=4, **more)
    return SparseTable(chosen, 1, memory=1 << 24)


def test_a_reader_that_does_not_read_is_given_up():
    table = make()
    push(table, range(2000), 1)
    save = table.begin_save(memory=0, patience=0.0)
    before = table.pull(np.arange(2000, dtype=np.uint64))
    assert push(table, range(2000), 2).updated == 2000
    assert np.all(table.pull(np.arange(2000, dtype=np.uint64)) != before)
    with pytest.raises(RunError, match="was given up, because the reader is too slow"):
        save.partition(0)
    save.close()
    expected = copies(table)
    with table.begin_save() as save:
        for partition, saved in save.partitions():
            check_same(saved, expected[partition])


def test_what_a_save_keeps_stays_within_its_memory():
    table = make()
    push(table, range(20_000), 1)
    before = table.nbytes
    memory = 700_000
    save = table.begin_save(memory, patience=0.0)
    most = 0
    for step in range(2, 100):
        push(table, np.arange(400 * step, 400 * step + 400) % 20_000, step)
        most = max(most, table.nbytes)
    assert before < most <= before + memory
    with pytest.raises(RunError, match="given up"):
        list(save.partitions())
    save.close()
    assert table.nbytes <= before + memory
    for step in range(100, 110):
        for _ in range(3):
            with table.begin_save(memory) as save:
                push(table, range(2000), step)
    assert table.nbytes <= before + memory


def with_little_memory_left():
    """Return a table, and a save that has kept rows in what was left of its memory."""
    table = make()
    push(table, range(60_000), 1)
    tight = SparseTable(table.settings, 1, memory=table.nbytes + (3 << 20))
    push(tight, range(60_000), 1)
    save = tight.begin_save(memory=3 << 20)
    push(tight, range(10_000), 2)
    return tight, save


def test_rows_take_the_memory_that_a_save_has_kept():
    tight, save = with_little_memory_left()
    reader = threading.Thread(target=lambda: (list(save.partitions()), save.close()))
    reader.start()
    # Has no room until the save ends.
    pushed = push(tight, range(100_000, 104_000), 3)
    reader.join()
    assert pushed.admitted == 4000


def test_a_save_is_given_up_for_rows_that_have_no_room(monkeypatch):
    table, save = with_little_memory_left()

    def read_and_close():
        with pytest.raises(RunError, match="the table needs the memory"):
            save.partition(0)
        save.close()
        return True

    waits = iter([lambda: False, read_and_close])
    monkeypatch.setattr(save, "_wait", lambda until: next(waits)())
    assert push(table, range(100_000, 104_000), 3).admitted == 4000


def test_a_table_has_one_save_at_a_time_and_is_not_loaded_meanwhile():
    table, other = make(), make()
    push(table, range(10), 1)
    with table.begin_save():
        with pytest.raises(RunError, match="another save is still running"):
            table.begin_save()
        with pytest.raises(RunError, match="cannot be loaded during a save"):
            table.load_partition(0, other.save_partition(0))
    with table.begin_save() as save:
        save.partition(1)
        with pytest.raises(RunError, match="partition 1 was already read"):
            save.partition(1)
    with pytest.raises(RunError, match="the save is closed"):
        save.partition(0)
    table.begin_save().close()


def test_a_save_that_its_table_has_no_memory_for_is_an_error():
    table = make()
    push(table, range(50_000), 1)
    full = SparseTable(table.settings, 1, memory=table.nbytes + (1 << 19))
    push(full, range(50_000), 1)
    with pytest.raises(RunError, match="a save needs"):
        full.begin_save()
    assert push(full, range(50_000), 2).updated == 50_000
