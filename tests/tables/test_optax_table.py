"""Tables with optax optimizers, compared with plain optax and with tables of placer."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.small_tables import ALL, SHAPES, block_of, initial_values, make_table

from placer.compiler.graph.stored_bytes import state_bytes
from placer.errors import RunError
from placer.ops.transformations.describe import describe
from placer.ops.transformations.functions import block_functions
from placer.place.types import TensorType
from placer.plan.plan import MEMORY, Table
from placer.plan.settings.training.optimizers import VALUES
from placer.runtime.exchange.devices import Devices
from placer.tables.optax_table import OptaxTable

CUT = [
    block_of("h1.w", 0, 7 * 5),
    block_of("h1.w", 7 * 5, 7 * 13, 1),
    *ALL[1:2],
    block_of("out.w", 0, 300 * 3),
    block_of("out.w", 300 * 3, 300 * 7, 1),
    *ALL[3:],
]
"""Blocks of the same parameters; two of each matrix."""
RATES = [0.1, 0.05, 0.2, 0.1, 0.01]


def adam(learning_rate):
    return optax.adam(learning_rate)


def factored(learning_rate):
    factors = optax.scale_by_factored_rms(min_dim_size_to_factor=8)
    return optax.chain(factors, optax.scale_by_learning_rate(learning_rate))


def free(learning_rate):
    return optax.contrib.schedule_free_sgd(learning_rate, warmup_steps=2)


@pytest.fixture(scope="module", autouse=True)
def compile_quickly(quick_compilation):
    """Compile quickly; these tests do not depend on optimizations."""


def devices():
    cpu = jax.devices("cpu")
    sets = {MEMORY: cpu[:1], "gpu:0": cpu[1:2], "gpu:0-1": cpu[1:3]}
    return Devices({name: tuple(each) for name, each in sets.items()})


def table_of(make, blocks=ALL, dtype="float64", to=MEMORY, averaged=None):
    types = {name: TensorType(dtype, shape) for name, shape in SHAPES.items()}
    wide = dtype == "float64"
    facts = {"averaged": averaged, "wide": wide}
    described = describe(make, types, fn="optimizers:make", **facts)
    functions = block_functions(make, types, blocks, described, **facts)
    planned = Table(
        name="ps",
        rule="optax",
        transformation="0",
        learning_rate=0.1,
        blocks=tuple(blocks),
        devices=to,
    )
    put = partial(devices().copy_to_devices, to=to)
    if to == MEMORY:
        put = partial(jax.device_put, device=jax.devices("cpu")[0])
    initial = initial_values(blocks, dtype)
    return OptaxTable(planned, dtype, initial, put, described, functions, wide=wide)


def gradients_of(blocks, step, dtype="float64"):
    """Return gradients that are the same for each way to cut the parameters."""
    rng = np.random.default_rng(step)
    whole = {
        name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()
    }
    return [
        whole[b.parameter].reshape(-1)[b.start : b.stop].reshape(b.shape)
        for b in blocks
    ]


def put_like(table, arrays, to):
    return arrays if to == MEMORY else list(table._put(arrays))


def joined(blocks, arrays):
    """Return whole parameters, flat, of arrays of blocks."""
    flat: dict[str, list[np.ndarray]] = {}
    for block, array in zip(blocks, arrays, strict=True):
        flat.setdefault(block.parameter, []).append(np.asarray(array).reshape(-1))
    return {name: np.concatenate(parts) for name, parts in flat.items()}


def run_plain(make, dtype, steps=RATES, scale=1.0):
    """Return flat parameters and the state after steps of optax on whole parameters."""
    with jax.enable_x64(dtype == "float64"):
        values = dict(
            zip(SHAPES, map(jnp.asarray, initial_values(ALL, dtype)), strict=True)
        )
        state = make(0.0).init(values)
        for step, rate in enumerate(steps):
            gradients = [scale * g for g in gradients_of(ALL, step, dtype)]
            tree = dict(zip(SHAPES, map(jnp.asarray, gradients), strict=True))
            updates, state = make(rate).update(tree, state, values)
            values = optax.apply_updates(values, updates)
        return {
            name: np.asarray(each).reshape(-1) for name, each in values.items()
        }, state


TOLERANCE = {"float64": 1e-14, "float32": 1e-5, "bfloat16": 0.05}


@pytest.mark.parametrize("to", [MEMORY, "gpu:0", "gpu:0-1"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_updates_equal_plain_optax(to, dtype):
    table = table_of(adam, CUT, dtype, to)
    with jax.enable_x64(dtype == "float64"):
        for step, rate in enumerate(RATES):
            gradients = put_like(table, gradients_of(CUT, step, dtype), to)
            table.update(gradients, learning_rate=rate)
        assert table.step == len(RATES)
        assert table.updates == (len(RATES),) * len(CUT)
        found = joined(CUT, table.values())
    expected, state = run_plain(adam, dtype)
    for name, value in expected.items():
        bound = TOLERANCE[dtype]
        np.testing.assert_allclose(found[name], value, bound, bound, err_msg=name)
    slots = table.slots()
    stored = sum(each.nbytes for of_blocks in slots.values() for each in of_blocks)
    types = {name: TensorType(dtype, shape) for name, shape in SHAPES.items()}
    described = describe(adam, types, fn="optimizers:make", wide=dtype == "float64")
    assert stored == sum(state_bytes(described, b.parameter, b.numel) for b in CUT)
    mu = joined(CUT, slots["0.mu"])
    for name, value in state[0].mu.items():
        np.testing.assert_allclose(
            mu[name], np.asarray(value).reshape(-1), bound, bound
        )
    assert [int(count) for count in table.slots()["0.count"]] == [5] * len(CUT)
    kind = np.ndarray if to == MEMORY else jax.Array
    assert all(isinstance(value, kind) for value in table.values())


def test_updates_of_half_floats_round_as_optax():
    table = table_of(adam, dtype="bfloat16")
    for step, rate in enumerate(RATES):
        table.update(gradients_of(ALL, step, "bfloat16"), learning_rate=rate)
    expected, _ = run_plain(adam, "bfloat16")
    for name, value in joined(ALL, table.values()).items():
        assert value.dtype == "bfloat16"
        np.testing.assert_allclose(
            value.astype("float32"), expected[name].astype("float32"), 0.02, 0.02
        )


def test_adam_equals_the_rule_of_placer():
    table, own = table_of(adam, CUT), make_table(CUT, "adam", dtype="float64")
    for step, rate in enumerate(RATES):
        for each in (table, own):
            each.update(gradients_of(CUT, step), learning_rate=rate, scale=0.5)
    for mine, value in zip(table.values(), own.values(), strict=True):
        np.testing.assert_allclose(mine, value, 1e-13, 1e-15)


@pytest.mark.parametrize("kind", ["number", "numpy", "blocks", "arrays"])
def test_gradients_are_scaled(kind):
    scales = {
        "number": 0.5,
        "numpy": np.float32(0.5),
        "blocks": (0.5,) * len(ALL),
        "arrays": tuple(jnp.float32(0.5) for _ in ALL),
    }
    table = table_of(lambda: optax.sgd(1.0))
    for step in range(2):
        table.update(gradients_of(ALL, step), learning_rate=0.0, scale=scales[kind])
    expected, _ = run_plain(lambda rate: optax.sgd(1.0), "float64", RATES[:2], 0.5)
    for name, value in joined(ALL, table.values()).items():
        np.testing.assert_allclose(value, expected[name], 1e-14)


def test_values_that_were_read_do_not_change():
    table = table_of(adam)
    before, snapshot = table.values(), table.snapshot(range(len(ALL)))
    copies = [value.copy() for value in before]
    gradients = gradients_of(ALL, 0)
    table.update(gradients, learning_rate=0.1)
    for value, kept, copy in zip(before, snapshot[VALUES], copies, strict=True):
        np.testing.assert_array_equal(value, copy)
        np.testing.assert_array_equal(kept, copy)
    assert all(not np.any(leaf) for leaf in snapshot["0.mu"])
    with pytest.raises(ValueError, match="read-only"):
        table.values()[0][...] = 0


def test_memory_of_gradients_may_be_reused():
    """Also by an optimizer that stores gradients."""
    kept = lambda: optax.chain(optax.trace(0.0), optax.sgd(1.0))  # noqa: E731
    table = table_of(kept)
    gradients = gradients_of(ALL, 0)
    table.update(gradients, learning_rate=0.0)
    values = [value.copy() for value in table.values()]
    for gradient in gradients:
        gradient.fill(9.0)
    for before, now in zip(values, table.values(), strict=True):
        np.testing.assert_array_equal(before, now)
    for trace, gradient in zip(
        table.slots()["0.trace"], gradients_of(ALL, 0), strict=True
    ):
        np.testing.assert_array_equal(trace, gradient)


def test_memory_of_loaded_values_may_be_reused():
    table = table_of(adam)
    values = [np.ones(block.shape) for block in ALL]
    table.load(values)
    values[0].fill(7.0)
    assert np.all(table.values()[0] == 1)


@pytest.mark.parametrize("make", [adam, factored, free])
def test_a_loaded_state_continues(make):
    first, second = table_of(make), table_of(make)
    for step in range(2):
        first.update(gradients_of(ALL, step), learning_rate=RATES[step])
    second.load(first.values())
    second.load_slots(first.slots())
    second.load_updates(first.updates)
    for table in (first, second):
        table.update(gradients_of(ALL, 2), learning_rate=0.1)
    assert second.updates == (3,) * len(ALL)
    for one, other in zip(first.values(), second.values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_block_without_a_leaf_has_none():
    table = table_of(lambda: optax.masked(adam(0.1), {n: n != "gain" for n in SHAPES}))
    slots = table.slots()
    (name,) = [each for each in slots if each.endswith("mu")]
    assert [slot is None for slot in slots[name]] == [False, False, False, True]
    table.load_slots(slots)
    with pytest.raises(RunError, match=f"gain has no '{name}'"):
        table.load_slots({**slots, name: (*slots[name][:3], np.zeros(()))})
    with pytest.raises(RunError, match=f"out.w has a '{name}'"):
        table.load_slots({**slots, name: (*slots[name][:2], None, None)})


def test_another_state_is_an_error():
    table = table_of(adam)
    slots = table.slots()
    with pytest.raises(
        RunError, match=r"has the state .*, but the argument has 0.count"
    ):
        table.load_slots({"0.count": slots["0.count"]})
    wrong = [np.zeros(block.shape, np.float32) for block in ALL]
    with pytest.raises(
        RunError, match=r"'0.mu' of h1.w is float32\[13, 7\], but its state"
    ):
        table.load_slots({**slots, "0.mu": wrong})
    with pytest.raises(RunError, match=r"gradient of h1\.w is float32"):
        table.update(wrong, learning_rate=0.1)


def test_a_state_begins_with_the_values_at_its_first_use():
    table = table_of(free)
    table.load([np.full(block.shape, 3.0) for block in ALL])
    (name,) = [each for each in table.initial_slots() if each.endswith("z")]
    assert all(np.all(slot == 3) for slot in table.slots()[name])
    table.load([np.full(block.shape, 4.0) for block in ALL])
    assert all(np.all(slot == 3) for slot in table.slots()[name])


def test_edited_values_are_loaded():
    table = table_of(adam)
    with table.editing() as values:
        values[0][...] += 1
    np.testing.assert_allclose(table.values()[0], initial_values(ALL, "float64")[0] + 1)


@pytest.mark.parametrize("to", [MEMORY, "gpu:0-1"])
def test_values_for_evaluations_come_from_the_state(to):
    averaged = optax.contrib.schedule_free_eval_params
    with jax.enable_x64(True):
        table = table_of(free, CUT, to=to, averaged=averaged)
        table.warm_up()
        for step, rate in enumerate(RATES):
            gradients = put_like(table, gradients_of(CUT, step), to)
            table.update(gradients, learning_rate=rate)
        found = joined(CUT, table.evaluation_values())
        values, state = run_plain(free, "float64")
        tree = {n: v.reshape(SHAPES[n]) for n, v in values.items()}
        for name, value in averaged(state, tree).items():
            np.testing.assert_allclose(found[name], np.ravel(value), 1e-13, 1e-13)
    plain = table_of(free)
    assert plain.evaluation_values() is plain.values()


def test_warming_up_compiles_updates_and_changes_nothing():
    table = table_of(adam)
    before = [value.copy() for value in table.values()]
    table.warm_up()
    assert table.step == 0
    assert table._update._cache_size() == 1
    table.update(gradients_of(ALL, 0), learning_rate=0.1)
    table.update(gradients_of(ALL, 1), learning_rate=0.2, scale=0.5)
    assert table._update._cache_size() == 1
    assert not np.array_equal(before[0], table.values()[0])


def test_a_table_without_blocks_does_nothing():
    table = table_of(adam, [])
    table.warm_up()
    table.update([], learning_rate=0.1)
    table.load_slots(table.slots())
    assert table.step == 1
    assert table.snapshot([]) == {VALUES: ()}
    assert table.evaluation_values() == ()


def test_counts_of_a_checkpoint_may_differ_between_blocks():
    first, table = table_of(adam, CUT), table_of(adam, CUT)
    first.update(gradients_of(CUT, 0), learning_rate=0.1)
    slots = first.slots()
    counts = [np.int32(i % 3) for i in range(len(CUT))]
    table.load_slots({**slots, "0.count": [np.array(count) for count in counts]})
    table.update(gradients_of(CUT, 1), learning_rate=0.1)
    assert [int(count) for count in table.slots()["0.count"]] == [
        int(count) + 1 for count in counts
    ]
    for i, count in enumerate(counts):
        alone = table_of(adam, [CUT[i]])
        alone.load_slots({
            "0.mu": slots["0.mu"][i : i + 1],
            "0.nu": slots["0.nu"][i : i + 1],
            "0.count": [np.array(count)],
        })  # fmt: skip
        alone.update(gradients_of([CUT[i]], 1), learning_rate=0.1)
        np.testing.assert_allclose(alone.values()[0], table.values()[i], 1e-15)
