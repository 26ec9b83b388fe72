"""Random programs on a sparse table and on a dict: pulls, pushes, forgetting, saving and
loading, in any order, with few keys and at capacity."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dict_table import DictTable

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
from placer.tables.sparse.table import SparseTable

SEED = 5
MEMORY = 1 << 22
# Keys of all magnitudes, and 0 and the greatest of all.
KEYS = [0, 2**64 - 1, 2**63, *range(1, 40), *(7919 * n**5 for n in range(1, 60))]
# A rule, its hyperparameters and the columns of a row: each takes seconds to compile. The
# quick ones have no slot, two, three, one of the row, and one of the row beside another.
QUICK_RULES = [
    ("sgd", {}, 1),
    ("adamw", {"weight_decay": 0.1}, 8),
    ("rmsprop", {"centered": True, "momentum": 0.5}, 5),
    ("rowwise_adagrad", {}, 17),
    ("rowwise_adam", {}, 3),
]
RULES = [
    *QUICK_RULES,
    ("momentum", {}, 2),
    ("adagrad", {}, 16),
    ("adam", {}, 3),
    ("ftrl", {"l1": 0.1, "l2": 0.1, "beta": 1.0}, 1),
    ("shared_adagrad", {}, 3),
    ("rowwise_adam", {}, 8),
]


@st.composite
def tables(draw, rules):
    admit = draw(
        st.sampled_from(
            [
                Always(),
                Count(3),
                Bloom(3, 512),
                Probability(0.3),
                Score(2.0),
            ]
        )
    )
    maybe = lambda values: draw(st.one_of(st.none(), values))  # noqa: E731
    counted = isinstance(admit, Count | Score)
    scored = isinstance(admit, Score) or draw(st.booleans())
    rule, hyper, dim = draw(st.sampled_from(rules))
    return Settings(
        name="table",
        dim=dim,
        rule=rule,
        hyper=hyper,
        init=draw(
            st.sampled_from(
                [("constant", (0.5,)), ("uniform", (-1.0, 1.0)), ("normal", (0.0, 0.1))]
            )
        ),
        default=0.25,
        partitions=draw(st.sampled_from([2, 4, 16])),
        admit=admit,
        forget=Forgetting(
            every=draw(st.sampled_from([1, 3, 16])),
            unseen_steps=maybe(st.integers(0, 12)),
            unseen_seconds=maybe(st.integers(0, 12)),
            score_below=maybe(st.floats(0.1, 1.5)) if scored else None,
            norm_below=maybe(st.floats(0.1, 0.6)),
        ),
        score=Scoring(decay=draw(st.sampled_from([1.0, 0.75]))) if scored else None,
        capacity=maybe(st.integers(1, 60)),
        evict=draw(st.sampled_from(["lru", "lfu"])),
        bounds=draw(st.sampled_from([None, (-0.4, 0.6)])),
        index="wide" if counted else draw(st.sampled_from(["wide", "compact"])),
    )


ACTIONS = ["push"] * 8 + ["forget"] * 2 + ["shrink", "reload", "split"]


SEEDS = st.integers(0, 2**32)
PROGRAMS = st.lists(st.sampled_from(ACTIONS), max_size=30)


@given(tables(QUICK_RULES), SEEDS, PROGRAMS)
@settings(derandomize=True, deadline=None, max_examples=25)
def test_a_table_does_what_a_dict_does(chosen, seed, actions):
    check_as_dict(chosen, seed, actions)


@pytest.mark.slow
@given(tables(RULES), SEEDS, PROGRAMS)
@settings(deadline=None, max_examples=1000)
def test_a_table_of_any_rule_does_what_a_dict_does(chosen, seed, actions):
    check_as_dict(chosen, seed, actions)


def check_as_dict(chosen, seed, actions):
    """Take the actions on a sparse table and on a dict, and compare them after each."""
    random = np.random.default_rng(seed)
    table = SparseTable(chosen, SEED, "float64", MEMORY)
    plain = DictTable(chosen, SEED)
    step, now = 0, 0
    keys = np.array(KEYS, np.uint64)
    found = table.find(keys)
    for action in actions:
        step += int(random.integers(1, 3))
        now += int(random.integers(0, 4))
        if random.random() < 0.3:
            found = table.find(keys)
        match action:
            case "push":
                push(table, plain, random, step, now)
            case "forget":
                assert table.forget(step, now) == plain.forget(step, now)
            case "shrink":
                assert table.shrink(step, now) == plain.shrink(step, now)
            case "reload":
                table = copy_of(table, range(chosen.partitions))
            case "split":
                half = chosen.partitions // 2
                low = copy_of(table, range(half))
                high = copy_of(table, range(half, chosen.partitions))
                assert low.rows + high.rows == table.rows
                table = joined(low, high)
        if action in ("reload", "split"):
            found = table.find(keys)
        check_same(table, plain)
        before = found._replace(rows=found.rows.copy())
        np.testing.assert_array_equal(table.pull(keys, found=before), table.pull(keys))


def push(table, plain, random, step, now):
    count = int(random.integers(0, 30))
    keys = random.permutation(len(KEYS))[:count]
    batch = {
        KEYS[i]: (
            random.standard_normal(table.settings.dim),
            int(random.integers(1, 4)),
            float(np.float32(random.integers(0, 5) / 4)),
            max(0, now - int(random.integers(0, 3))),
        )
        for i in keys
    }
    columns = zip(*batch.values(), strict=True) if batch else [()] * 4
    gradients, occurrences, scores, times = columns
    pushed = table.push(
        np.array([*batch], np.uint64),
        np.reshape(gradients, (len(batch), table.settings.dim)),
        learning_rate=0.1,
        step=step,
        occurrences=np.array(occurrences, np.uint32),
        scores=np.array(scores, np.float32),
        times=np.array(times, np.float64),
        scale=0.5,
    )
    updated, admitted, refused, evicted = plain.push(batch, 0.1, step, 0.5)
    assert pushed.updated == updated
    assert pushed.admitted == admitted
    assert pushed.refused == refused
    assert pushed.evicted == evicted


def copy_of(table, partitions):
    copy = SparseTable(table.settings, SEED, "float64", MEMORY)
    for partition in partitions:
        copy.load_partition(partition, table.save_partition(partition))
    return copy


def joined(low, high):
    half = low.settings.partitions // 2
    table = copy_of(low, range(half))
    for partition in range(half, low.settings.partitions):
        table.load_partition(partition, high.save_partition(partition))
    return table


def check_same(table, plain):
    keys = np.array(KEYS, np.uint64)
    before = table.rows
    pulled = table.pull(keys)
    expected = np.stack([plain.pull(key) for key in KEYS])
    np.testing.assert_allclose(pulled, expected, rtol=1e-12, atol=1e-15)
    assert table.rows == before == len(plain.rows), "a pull creates no row"
    rows, entries = {}, {}
    for partition in range(table.settings.partitions):
        saved = table.save_partition(partition)
        for i, key in enumerate(saved["keys"].tolist()):
            assert plain.partition(key) == partition
            assert key not in rows
            rows[key] = {name: saved[name][i] for name in saved if is_of_rows(name)}
        words = saved["entry_words"].tolist()
        entries |= zip(saved["entry_keys"].tolist(), words, strict=True)
    assert rows.keys() == plain.rows.keys()
    assert entries.keys() == plain.waiting.keys()
    for key, row in plain.rows.items():
        own = rows[key]
        assert own["count"] == row.count
        assert own["seen"] == row.seen
        values = np.concatenate([row.value, *row.slots])
        np.testing.assert_allclose(own["values"][: values.size], values, 1e-12, 1e-15)
        if "scalars" in own:
            assert own["scalars"] == pytest.approx(row.scalar, rel=1e-12)
        if "updates" in own:
            assert own["updates"] == row.updates
        if "times" in own:
            assert own["times"] == row.time
        if "scores" in own:
            assert own["scores"] == row.score


def is_of_rows(name):
    return not name.startswith("entry") and name not in ("keys", "filter", "latest")
