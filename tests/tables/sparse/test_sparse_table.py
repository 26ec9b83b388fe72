"""A sparse table: rows by key, that begin as those of a dense parameter and are updated by
the same rules."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from placer.errors import RunError
from placer.plan.plan import Parameter, Table
from placer.plan.settings.sparse.table import (
    Bloom,
    Count,
    Forgetting,
    Probability,
    Score,
    Scoring,
)
from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.plan.settings.training import optimizers
from placer.plan.settings.training.initializers import read_init
from placer.plan.settings.training.slicing import Block
from placer.tables.dense import DenseTable
from placer.tables.initial.initial_values import compute_values
from placer.tables.sparse.merging import number_keys, sum_rows
from placer.tables.sparse.table import SparseTable

SEED, DIM = 3, 5


def make(memory=1 << 24, dtype="float32", **settings):
    named = {"name": "emb.table", "dim": DIM, "partitions": 4} | settings
    return SparseTable(Settings(**named), SEED, dtype, memory)


def push(table, keys, step=1, gradient=1.0, **more):
    keys = np.array(keys, np.uint64)
    gradients = np.full((keys.size, table.settings.dim), gradient, table.dtype)
    return table.push(keys, gradients, learning_rate=0.1, step=step, **more)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "init",
    [("uniform", (-0.5, 0.25)), ("normal", (0.0, 0.1)), ("truncated_normal", (0.0, 1))],
)
@pytest.mark.parametrize("dim", [1, 4, 5])
def test_a_row_begins_with_the_bits_of_the_dense_parameter(init, dim, dtype):
    table = make(init=init, dim=dim, dtype=dtype)
    form, arguments = init
    names = ("mean", "std") if form != "uniform" else ()
    argument = dict(zip(names, arguments, strict=True)) if names else list(arguments)
    shape = (50, dim)
    parameter = Parameter(
        name="emb.table",
        dtype=dtype,
        shape=shape,
        init=read_init({form: argument}),
        trainable=True,
        holders=(),
    )
    block = Block("emb.table", "", 0, 50 * dim, shape)
    dense = compute_values(parameter, block, SEED, None).reshape(shape)
    keys = np.arange(50, dtype=np.uint64)
    assert_array_equal(table.pull(keys), dense)
    push(table, keys, gradient=0.0)
    assert_array_equal(table.pull(keys), dense)


def test_keys_are_all_patterns_of_64_bits():
    keys = [0, 1, 2**32, 2**40 + 5, 5, 2**63, 2**64 - 1]
    table = make(init=("uniform", (-1.0, 1.0)))
    assert len(np.unique(table.pull(np.array(keys, np.uint64))[:, 0])) == len(keys)
    push(table, keys)
    assert table.rows == len(keys)
    signed = np.array(keys, np.uint64).view(np.int64)
    assert_array_equal(table.pull(signed), table.pull(np.array(keys, np.uint64)))


@pytest.mark.parametrize(
    "rule", ["sgd", "momentum", "adagrad", "adam", "nadam", "ftrl"]
)
def test_rows_in_every_step_are_updated_as_those_of_a_dense_table(rule):
    random = np.random.default_rng(0)
    shape = (30, DIM)
    table = make(rule=rule, init=("uniform", (-1.0, 1.0)))
    keys = np.arange(30, dtype=np.uint64)
    planned = Table(
        name="dense",
        rule=rule,
        learning_rate=0.1,
        blocks=(Block("w", "w", 0, 30 * DIM, shape),),
        devices="cpu:0",
    )
    dense = DenseTable(planned, "float32", [table.pull(keys)])
    for step in range(1, 6):
        gradient = random.standard_normal(shape, np.float32)
        dense.update([gradient], learning_rate=0.1, scale=0.5)
        table.push(keys, gradient, learning_rate=0.1, step=step, scale=0.5)
        assert_array_equal(table.pull(keys), dense.values()[0])


def test_the_updates_of_a_row_count_for_its_bias_correction_alone():
    table = make(rule="adam")
    for step in range(1, 4):
        push(table, [1], step)
    push(table, [2], step=4)
    once = make(rule="adam")
    push(once, [2], step=1)
    key = np.array([2], np.uint64)
    assert_array_equal(table.pull(key), once.pull(key))


def test_shared_adagrad_is_that_of_paddlepaddle():
    table = make(dim=10, rule="shared_adagrad", hyper={"initial_g2sum": 0.2})
    key = np.array([7], np.uint64)
    gradient = np.arange(1, 11, dtype="float32")[None]
    table.push(key, gradient, learning_rate=0.1, step=1)
    np.testing.assert_allclose(table.pull(key), -gradient / 10, rtol=1e-6)
    (partition,) = (p for p in range(4) if table.save_partition(p)["keys"].size)
    assert table.save_partition(partition)["scalars"] == pytest.approx(38.5)


def test_row_wise_rules_are_their_formulas():
    random = np.random.default_rng(1)
    gradients = random.standard_normal((6, DIM))
    key = np.array([9], np.uint64)
    adagrad = make(rule="rowwise_adagrad", dtype="float64")
    adam = make(rule="rowwise_adam", dtype="float64")
    value = np.zeros(DIM)
    total, other, mu, nu = 0.1, np.zeros(DIM), np.zeros(DIM), 0.0
    for step, gradient in enumerate(gradients, 1):
        for table in (adagrad, adam):
            table.push(key, gradient[None], learning_rate=0.1, step=step)
        mean = np.mean(gradient**2)
        total += mean
        value -= 0.1 * gradient / np.sqrt(total + 1e-7)
        mu = 0.9 * mu + 0.1 * gradient
        nu = 0.999 * nu + 0.001 * mean
        corrected = mu / (1 - 0.9**step)
        other -= 0.1 * corrected / (np.sqrt(nu / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(adagrad.pull(key)[0], value, rtol=1e-12)
    np.testing.assert_allclose(adam.pull(key)[0], other, rtol=1e-12)


def test_a_pull_changes_nothing():
    table = make(admit=Count(2))
    push(table, [1, 2])
    before = [table.save_partition(p) for p in range(4)]
    table.pull(np.arange(100, dtype=np.uint64))
    for partition, saved in enumerate(before):
        for name, array in table.save_partition(partition).items():
            assert_array_equal(array, saved[name])


def test_the_push_that_admits_a_key_drops_its_gradient():
    table = make(admit=Count(3), default=0.5, init=("constant", (2.0,)))
    key = np.array([4], np.uint64)
    assert push(table, [4], step=1).refused == 1
    assert_array_equal(table.pull(key), np.full((1, DIM), 0.5))
    pushed = push(table, [4], step=2, occurrences=np.array([2], np.uint32))
    assert (pushed.admitted, pushed.updated) == (1, 0)
    assert_array_equal(table.pull(key), np.full((1, DIM), 2.0))
    assert push(table, [4], step=3).updated == 1
    np.testing.assert_allclose(table.pull(key), 1.9, rtol=1e-6)


def test_a_bloom_filter_admits_few_keys_too_early():
    table = make(partitions=256, admit=Bloom(2, 7 << 16))
    random = np.random.default_rng(0)
    keys = random.integers(0, 2**64, 1 << 16, np.uint64)
    early = sum(
        push(table, keys[low : low + 4096]).admitted
        for low in range(0, keys.size, 4096)
    )
    assert early < 0.03 * keys.size, "7 bytes for each key"
    assert push(table, keys[:5000]).admitted + early >= 5000


def test_keys_are_admitted_by_chance_once_in_so_many_occurrences():
    keys = np.arange(20_000, dtype=np.uint64)
    table = make(admit=Probability(0.1))
    assert push(table, keys).admitted == pytest.approx(2000, rel=0.1)
    other = make(admit=Probability(0.1))
    push(other, keys[::-1].copy())
    assert other.rows == table.rows, "the order of keys does not matter"
    thrice = make(admit=Probability(0.1))
    occurrences = np.full(keys.size, 3, np.uint32)
    admitted = push(thrice, keys, occurrences=occurrences).admitted
    assert admitted == pytest.approx(20_000 * (1 - 0.9**3), rel=0.1)
    of_workers = make(admit=Probability(0.1))  # of which each pushes the same step
    for draw in range(3):
        push(of_workers, keys, draw=draw)
    assert of_workers.rows == pytest.approx(20_000 * (1 - 0.9**3), rel=0.1)


@pytest.mark.parametrize(("index", "most"), [("wide", 51), ("compact", 36)])
def test_a_row_and_its_entry_take_few_bytes_beside_its_values(index, most):
    table = make(memory=1 << 28, dim=16, rule="adagrad", partitions=256, index=index)
    random = np.random.default_rng(0)
    rows = 0
    while rows < 400_000:
        keys = np.unique(random.integers(0, 2**64, 50_000, np.uint64))
        rows += push(table, keys).admitted
        if rows > 200_000:
            # Half a chunk of each partition is not used yet.
            spare = 256 * 128 * (128 + 16)
            assert (table.nbytes - spare) / table.rows <= 128 + most
    assert table.rows == rows


def test_keys_with_the_same_bits_in_a_compact_index_have_rows_of_their_own():
    """Its entries have 32 bits of the hash: of 2**17 keys, some share these."""
    table = make(memory=1 << 26, partitions=2, index="compact")
    random = np.random.default_rng(0)
    bits = np.unique(random.integers(0, 2**26, 1 << 17, np.uint64))
    # The inverse of the hash: keys whose tags differ in few of their bits.
    keys = np.concatenate([unmix(bits << np.uint64(37) | each) for each in (1, 2)])
    for low in range(0, keys.size, 5000):
        part = keys[low : low + 5000]
        numbers = np.arange(low, low + part.size, dtype=np.float32)
        gradients = np.repeat(numbers[:, None], DIM, axis=1)
        table.push(part, gradients, learning_rate=1.0, step=1)
    assert table.rows == keys.size
    assert_array_equal(table.pull(keys)[:, 0], -np.arange(keys.size))


def unmix(hashed):
    """The inverse of `mix`."""
    u64 = np.uint64
    hashed = (hashed ^ (hashed >> u64(31)) ^ (hashed >> u64(62))) * u64(
        pow(0x94D049BB133111EB, -1, 2**64)
    )
    hashed = (hashed ^ (hashed >> u64(27)) ^ (hashed >> u64(54))) * u64(
        pow(0xBF58476D1CE4E5B9, -1, 2**64)
    )
    return hashed ^ (hashed >> u64(30)) ^ (hashed >> u64(60))


def test_a_compact_index_has_no_counts_of_keys():
    with pytest.raises(RunError, match="a compact index cannot count keys"):
        make(admit=Count(2), index="compact")
    # A save with such counts is loaded without them.
    counted, table = make(admit=Count(2)), make(index="compact")
    push(counted, range(20))
    push(counted, range(10), step=2)
    for partition in range(4):
        table.load_partition(partition, counted.save_partition(partition))
    assert table.rows == 10
    assert push(table, range(20), step=3).admitted == 10


def test_rows_that_are_forgotten_are_used_again():
    table = make(forget=Forgetting(unseen_steps=3))
    push(table, range(5000), step=1)
    full = table.nbytes
    for step in range(10, 100, 10):
        assert table.shrink(step) == 5000
        push(table, range(5000 * step, 5000 * step + 5000), step)
    assert table.nbytes <= 1.3 * full


def test_a_row_that_was_forgotten_begins_again_as_it_was():
    table = make(
        init=("uniform", (-1.0, 1.0)),
        rule="momentum",
        forget=Forgetting(unseen_steps=0),
    )
    keys = np.arange(10, dtype=np.uint64)
    first = table.pull(keys)
    push(table, keys, step=1)
    assert table.shrink(step=5) == 10
    assert_array_equal(table.pull(keys), first)
    push(table, keys, step=6)
    np.testing.assert_allclose(table.pull(keys), first - 0.1, rtol=1e-5)


def test_each_partition_is_looked_at_once_in_a_sweep():
    table = make(partitions=16, forget=Forgetting(every=5, unseen_steps=0))
    push(table, range(500), step=0)
    forgotten = [table.forget(step) for step in range(10, 15)]
    assert sum(forgotten) == 500
    assert all(forgotten)
    assert table.end_pass(20) == 0


def test_a_sweep_of_each_pass_looks_at_all_partitions():
    table = make(partitions=16, forget=Forgetting(every="pass", unseen_seconds=10))
    table.note_time(100)
    push(table, range(500), times=np.repeat([80, 95], 250))
    assert sum(table.forget(step, table.latest) for step in range(300)) == 0
    assert table.end_pass(300) == 250
    assert table.end_pass(300) == 0


def test_arrays_of_another_table_are_not_loaded():
    wide, narrow = make(dim=40), make(dim=3)
    push(wide, range(20))
    with pytest.raises(RunError, match="saved values of 0 are float32"):
        narrow.load_partition(0, wide.save_partition(0))
    with pytest.raises(RunError, match="but the table has"):
        make(rule="adam", dim=40).load_partition(0, wide.save_partition(0))
    with pytest.raises(RunError, match="it is not empty"):
        wide.load_partition(0, wide.save_partition(0))
    with pytest.raises(RunError, match="keys belong to another partition"):
        make(dim=40).load_partition(1, wide.save_partition(0))


@pytest.mark.parametrize("admit", [Count(1), Count(9)])
def test_an_older_event_does_not_make_a_key_older(admit):
    table = make(admit=admit, forget=Forgetting(unseen_seconds=100))
    for step, second in enumerate((2**30 + 5, 2**30 - 60, 2**29 + 9), start=1):
        push(table, [7], step=step, times=np.array([second]))
    now = 2**30 + 105
    for step, left in ((4, 1), (5, 0)):
        table.shrink(step, now + step - 4)
        kept = [table.save_partition(partition) for partition in range(4)]
        assert sum(p["keys"].size + p["entry_keys"].size for p in kept) == left


def test_a_row_is_updated_more_often_than_it_can_be_counted():
    table, again = make(rule="adam"), make(rule="adam")
    push(table, [7])
    (partition,) = (p for p in range(4) if table.save_partition(p)["keys"].size)
    saved = table.save_partition(partition)
    again.load_partition(partition, saved | {"updates": saved["updates"] * 0 - 2})
    for step in range(2, 5):
        push(again, [7], step)
    assert again.save_partition(partition)["updates"] == [2**32 - 1]


WAYS = {
    "plain": {},
    "filtered": {"admit": Bloom(2, 4096)},
    "timed": {"forget": Forgetting(unseen_seconds=10)},
    "scored": {"score": Scoring(no_click=0.25), "forget": Forgetting(score_below=0.1)},
}


@pytest.mark.parametrize("before", WAYS)
@pytest.mark.parametrize("after", WAYS)
def test_rows_stay_when_keys_are_admitted_or_forgotten_in_another_way(before, after):
    first, then = make(**WAYS[before]), make(**WAYS[after])
    keys = np.arange(30, dtype=np.uint64)
    for step in (1, 2):
        scores = np.full(30, 0.25, np.float32)
        push(first, keys, step, times=np.full(30, 500), scores=scores)
    first.note_time(500)
    for partition in range(4):
        then.load_partition(partition, first.save_partition(partition))
    assert then.rows == 30
    assert_array_equal(then.pull(keys), first.pull(keys))
    then.note_time(505)
    assert then.shrink(3, 505) == 0
    assert then.shrink(4, 510) == 0
    assert then.shrink(5, 516) == (30 if after == "timed" else 0)


def load_values(table, scores=None):
    """Load rows of partition 0 of another run; return their keys."""
    other = make()
    push(other, range(40))
    keys = other.save_partition(0)["keys"]
    if scores is not None:
        scores = np.full(keys.size, scores, np.float32)
    table.load_values(0, keys, np.ones((keys.size, DIM), table.dtype), scores)
    return keys


@pytest.mark.parametrize(
    ("admit", "given", "score"),
    [(Count(1), None, 0.25), (Score(2.0), None, 2.0), (Score(2.0), 3.0, 3.0)],
)
def test_rows_of_another_run_have_a_score(admit, given, score):
    scoring, forget = Scoring(no_click=0.25, decay=0.5), Forgetting(score_below=0.1)
    table = make(score=scoring, forget=forget, admit=admit)
    keys = load_values(table, given)
    assert_array_equal(table.save_partition(0)["scores"], np.full(keys.size, score))
    assert table.shrink(1) == 0
    assert sum(table.shrink(step) for step in range(2, 9)) == keys.size


def test_rows_of_another_run_are_seen_when_this_one_begins():
    table = make(forget=Forgetting(unseen_seconds=10))
    keys = load_values(table)
    push(table, keys[:1], times=np.array([990]))
    table.note_time(1000)
    assert table.shrink(1, 1000) == 0
    assert table.shrink(2, 1005) == 1
    assert table.shrink(3, 1010) == 0
    assert table.shrink(4, 1011) == keys.size - 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: {"keys": np.repeat(saved["keys"][:1], saved["keys"].size)},
        lambda saved: {"count": np.zeros_like(saved["count"])},
        lambda saved: {"entry_words": saved["entry_words"] | np.uint64(1)},
        lambda saved: {"entry_words": saved["entry_words"][1:]},
        lambda saved: {"values": saved["values"][1:]},
    ],
)
def test_a_damaged_partition_is_not_loaded(damage):
    table, other = make(admit=Count(2)), make(admit=Count(2))
    push(table, range(20), occurrences=np.arange(1, 21, dtype=np.uint32))
    push(table, range(100, 120), step=2)
    saved = table.save_partition(0)
    assert saved["keys"].size > 1
    assert saved["entry_keys"].size > 1
    with pytest.raises(RunError, match="saved"):
        other.load_partition(0, {**saved, **damage(saved)})
    assert other.rows == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"keys": np.arange(3.0)}, "keys are float64"),
        ({"gradients": np.zeros((2, DIM), "float32")}, "gradients are float32"),
        ({"gradients": np.zeros((3, DIM + 1), "float32")}, "gradients are float32"),
        ({"gradients": np.zeros((3, DIM))}, "gradients are float64"),
        ({"occurrences": np.ones(2, np.uint32)}, "occurrences are uint32"),
        ({"occurrences": np.zeros(3, np.uint32)}, "a key occurs 0 times"),
        ({"scores": np.zeros(4, np.float32)}, "scores are float32"),
        ({"times": np.zeros(2)}, "times are float64"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments, problem):
    table = make()
    fitting = {
        "keys": np.arange(3, dtype=np.uint64),
        "gradients": np.zeros((3, DIM), "float32"),
    }
    with pytest.raises(RunError, match=problem):
        table.push(**(fitting | arguments), learning_rate=0.1, step=1)
    assert table.rows == 0
    with pytest.raises(RunError, match="the result"):
        table.pull(fitting["keys"], np.empty((2, DIM), "float32"))


@pytest.mark.parametrize("partitions", [0, 1, 3, 1 << 17])
def test_the_number_of_partitions_is_a_power_of_two(partitions):
    with pytest.raises(ValueError, match=r"emb\.table: 'partitions' must be a power"):
        make(partitions=partitions)


def test_an_empty_batch_changes_nothing():
    table = make()
    assert push(table, []).updated == 0
    assert table.pull(np.empty(0, np.uint64)).shape == (0, DIM)
    assert table.rows == 0


def test_keys_are_numbered_as_they_appear_and_summed_in_order():
    random = np.random.default_rng(2)
    keys = random.integers(0, 300, 5000).astype(np.uint64)
    distinct, numbers = number_keys(keys)
    assert distinct.tolist() == list(dict.fromkeys(keys.tolist()))
    assert_array_equal(distinct[numbers], keys)
    rows = random.standard_normal((5000, 3), np.float32)
    scales = random.standard_normal(5000, np.float32)
    expected = np.zeros((distinct.size, 3), np.float32)
    np.add.at(expected, numbers, rows)
    assert_array_equal(sum_rows(rows, numbers, distinct.size), expected)
    expected = np.zeros((distinct.size, 3), np.float32)
    np.add.at(expected, numbers, scales[:, None] * rows)
    assert_array_equal(sum_rows(rows, numbers, distinct.size, scales), expected)
    empty, none = number_keys(keys[:0])
    assert empty.size == none.size == 0


def test_every_row_rule_has_a_slot_that_it_declares():
    for name, rule in optimizers.ROW_RULES.items():
        assert rule.row_slot in rule.slots
        assert optimizers.name_of(rule) == name


def test_a_table_has_the_keys_of_its_partitions_only():
    whole = make(partitions=16)
    keys = np.arange(1000, dtype=np.uint64)
    push(whole, keys)
    parts = [
        SparseTable(whole.settings, SEED, memory=1 << 24, held=range(low, stop))
        for low, stop in [(0, 3), (3, 10), (10, 16)]
    ]
    for part in parts:
        for partition in part.held:
            part.load_partition(partition, whole.save_partition(partition))
        own = np.concatenate([part.save_partition(p)["keys"] for p in part.held])
        assert part.rows == own.size
        assert_array_equal(part.pull(own), whole.pull(own))
        with part.begin_save() as save:
            assert [partition for partition, _ in save.partitions()] == [*part.held]
        problem = f"{1000 - own.size:,} of 1,000 keys do not belong to its partitions"
        with pytest.raises(RunError, match=problem):
            part.pull(keys)
        before = part.statistics()
        with pytest.raises(RunError, match=problem):
            push(part, keys)
        assert part.statistics() == before
        other = (part.held.stop + 1) % 16
        with pytest.raises(RunError, match=f"does not hold partition {other}"):
            part.load_partition(other, whole.save_partition(other))
    assert sum(part.rows for part in parts) == whole.rows


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_gradients_that_are_not_finite_change_no_row(value, dtype):
    table, other = make(dtype=dtype, rule="adam"), make(dtype=dtype, rule="adam")
    keys = np.arange(20, dtype=np.uint64)
    for each in (table, other):
        push(each, keys[:15])
    gradients = np.full((20, DIM), 0.5, dtype)
    is_bad = np.isin(keys, [0, 7, 19])
    gradients[is_bad, [0, 2, DIM - 1]] = value
    before = [table.save_partition(p) for p in range(4)]
    with pytest.raises(RunError, match="the gradients of 3 of 20 keys are not finite"):
        table.push(keys, gradients, learning_rate=0.1, step=2)
    for partition, saved in enumerate(before):
        for name, array in table.save_partition(partition).items():
            assert_array_equal(array, saved[name])
    pushed = table.push(
        keys, gradients, learning_rate=0.1, step=2, drop_not_finite=True
    )
    assert (pushed.updated, pushed.admitted, pushed.not_finite) == (17, 5, 3)
    other.push(keys[~is_bad], gradients[~is_bad], learning_rate=0.1, step=2)
    assert_array_equal(table.pull(keys), other.pull(keys))
    seen = np.concatenate([table.save_partition(p)["seen"] for p in range(4)])
    assert np.count_nonzero(seen == 2) == 20, "the keys have occurred"
    assert table.statistics().not_finite == 3


def test_with_a_factor_that_is_not_finite_no_gradient_is():
    table, keys = make(), np.arange(4, dtype=np.uint64)
    push(table, keys)
    before, gradients = table.pull(keys), np.ones((4, DIM), np.float32)
    given = {"learning_rate": 0.1, "step": 2, "scale": np.nan}
    with pytest.raises(RunError, match="the factor for the gradients is nan in step 2"):
        table.push(keys, gradients, where="in step 2", **given)
    pushed = table.push(keys, gradients, drop_not_finite=True, **given)
    assert (pushed.updated, pushed.not_finite) == (0, 4)
    assert_array_equal(table.pull(keys), before)


def test_statistics_are_sums_of_what_was_done():
    table = make(admit=Count(2), capacity=40, forget=Forgetting(unseen_steps=1))
    random = np.random.default_rng(0)
    expected = dict.fromkeys(("admitted", "refused", "evicted", "not_finite"), 0)
    forgotten = hits = 0
    for step in range(20):
        keys = random.permutation(100)[:30].astype(np.uint64)
        pushed = push(table, keys, step)
        for name in expected:
            expected[name] += getattr(pushed, name)
        forgotten += table.shrink(step)
        held = np.concatenate([table.save_partition(p)["keys"] for p in range(4)])
        hits += np.isin(keys, held).sum()
        table.pull(keys)
    found = table.statistics()
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.admitted - found.evicted - found.forgotten == found.rows > 0
    assert (found.forgotten, found.hits, found.lookups) == (forgotten, hits, 600)
    entries = [table.save_partition(p)["entry_keys"].size for p in range(4)]
    assert found.counted == sum(entries)
    assert min(found.refused, found.evicted, found.forgotten, found.hits) > 0
    assert min(found.rows, found.counted) > 0
    assert found.nbytes == table.nbytes
