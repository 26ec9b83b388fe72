"""What dense tables hold, and what they promise about it."""

import jax
import numpy as np
import pytest
from support.small_tables import (
    ALL,
    INITS,
    RATES,
    SHAPES,
    VARIANTS,
    cut,
    gradients,
    named,
    table,
    update,
    whole,
)

from placer.config import optimizers
from placer.errors import RunError
from placer.tables import compiled_kernels
from placer.tables.initial import initial_values


def test_values_begin_as_the_initialisers_say():
    blocks = [whole("h1.w"), cut("out.w", 700, 1400)]
    for block, value in zip(blocks, table(blocks).values(), strict=True):
        expected = initial_values.values(
            INITS[block.parameter],
            seed=5,
            name=block.parameter,
            shape=block.parameter_shape,
            start=block.start,
            stop=block.stop,
            dtype="float32",
        )
        np.testing.assert_array_equal(value, expected.reshape(block.shape))


@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_slots_begin_at_their_constants(case):
    begin = optimizers.slots(*case)
    slots = table(ALL, *case).slots()
    assert list(slots) == list(begin)
    for slot, arrays in slots.items():
        assert [array.shape for array in arrays] == list(SHAPES.values())
        assert all((array == np.float32(begin[slot])).all() for array in arrays)


@pytest.mark.parametrize("in_place", [True, False])
def test_views_are_aligned_read_only_and_of_one_buffer(in_place):
    made = table(ALL, "adam", in_place=in_place)
    for step in range(4):
        views = made.values()
        assert [view.shape for view in views] == list(SHAPES.values())
        assert all(view.ctypes.data % 64 == 0 for view in views)
        assert not any(view.flags.writeable for view in views)
        spans = [view.ctypes.data + view.nbytes for view in views]
        total = sum(-(-view.nbytes // 64) * 64 for view in views)
        assert max(spans) - views[0].ctypes.data <= total
        made.update(list(gradients(step).values()), learning_rate=0.1)


def test_gradients_may_be_overwritten_after_the_update():
    reused, fresh = table(ALL, "adam"), table(ALL, "adam")
    buffers = [np.zeros(shape, np.float32) for shape in SHAPES.values()]
    for step in range(5):
        for buffer, gradient in zip(buffers, gradients(step).values(), strict=True):
            buffer[...] = gradient
        reused.update(buffers, learning_rate=0.1)
        for buffer in buffers:
            buffer.fill(np.nan)
        fresh.update(list(gradients(step).values()), learning_rate=0.1)
    for a, b in zip(reused.values(), fresh.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_of_jax_and_a_scale():
    ours, doubled = table(ALL), table(ALL)
    made = gradients(0)
    ours.update(
        [jax.numpy.asarray(g) for g in made.values()],
        learning_rate=0.1,
        scale=jax.numpy.float32(2.0),
    )
    doubled.update([2 * g for g in made.values()], learning_rate=0.1)
    for a, b in zip(ours.values(), doubled.values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_padding_stays_zero(in_place):
    made = table([whole("h1.b"), whole("gain")], "adam", in_place=in_place)
    for step in range(3):
        drawn = gradients(step)
        made.update([drawn["h1.b"], drawn["gain"]], learning_rate=0.1)
    (first, second) = made.values()
    flat = first.base
    assert flat.size == 32
    kept = np.zeros(32, np.float32)
    kept[:7], kept[16] = first, second
    np.testing.assert_array_equal(flat, kept)


def test_warming_up_changes_nothing():
    made = table(ALL, "adam")
    made.update(list(gradients(0).values()), learning_rate=0.1)
    before, slots = made.values(), made.slots()
    made.warm()
    assert made.step == 1
    for a, b in zip(before, made.values(), strict=True):
        np.testing.assert_array_equal(a, b)
    for slot, arrays in made.slots().items():
        for a, b in zip(slots[slot], arrays, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_a_warm_table_compiles_nothing_more(case, dtype, monkeypatch):
    made = table(ALL, *case, dtype)
    made.warm()
    monkeypatch.delattr(compiled_kernels, "compiled")
    for step, rate in enumerate(RATES[:4]):
        drawn = list(gradients(step, made.dtype).values())
        update(made, drawn, rate, None if step % 2 else 0.5)
    assert made.step == 4


@pytest.mark.parametrize("rule", ["adam", "lamb"])
def test_a_table_that_is_warm_for_workers_compiles_nothing_more(rule, monkeypatch):
    made = table([whole("h1.b")], rule)
    made.warm(3)
    monkeypatch.delattr(compiled_kernels, "compiled")
    chunk = [np.ones(7, np.float32)] * 3
    if rule == "adam":
        with made.updating(learning_rate=0.1) as each:
            each.apply(0, 0, chunk)
    else:
        with made.directing() as each:
            each.apply(0, 0, chunk)
        made.update_by([1.0], learning_rate=0.1)
    assert made.step == 1


def test_loaded_values_are_used_and_slots_stay():
    made = table(ALL, "momentum")
    made.update(list(gradients(0).values()), learning_rate=0.1)
    held, slots = made.values(), made.slots()
    kept = held[0].copy()
    loaded = [np.full(shape, 3.0, np.float32) for shape in SHAPES.values()]
    made.load(loaded)
    loaded[0].fill(9.0)
    assert (made.values()[0] == 3.0).all()
    np.testing.assert_array_equal(held[0], kept)
    np.testing.assert_array_equal(made.slots()["trace"][0], slots["trace"][0])
    assert made.step == 1


@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_a_table_goes_on_from_loaded_values_slots_and_step(case):
    one, other = table(ALL, *case), table(ALL, *case)
    for step in range(3):
        update(one, list(gradients(step).values()), RATES[step])
    other.load(one.values())
    other.load_slots(one.slots())
    other.step = one.step
    for made in (one, other):
        update(made, list(gradients(3).values()), RATES[3])
    for a, b in zip(one.values(), other.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_slots_are_copies():
    made = table([whole("h1.b")], "momentum")
    (trace,) = made.slots()["trace"]
    trace.fill(5.0)
    given = [np.full(7, 2.0, np.float32)]
    assert (made.slots()["trace"][0] == 0).all()
    made.load_slots({"trace": given})
    given[0].fill(5.0)
    assert (made.slots()["trace"][0] == 2.0).all()


def test_a_table_without_blocks_does_nothing():
    for in_place in (True, False):
        empty = table([], "adam", in_place=in_place)
        empty.warm()
        empty.update([], learning_rate=0.1)
        empty.load([])
        with empty.updating(learning_rate=0.1):
            pass
        assert empty.values() == ()
        assert empty.slots() == {"mu": (), "nu": ()}
        assert empty.step == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([], "table ps: 0 gradients for 1 blocks"),
        (
            [np.zeros((7, 13), np.float32)],
            r"table ps: gradient of h1.w is float32\[7, 13\],"
            r" the block is float32\[13, 7\]",
        ),
        ([np.zeros((13, 7))], r"is float64\[13, 7\], the block is float32"),
    ],
)
def test_gradients_that_do_not_fit_are_refused(wrong, message):
    made = table([whole("h1.w")])
    with pytest.raises(RunError, match=message):
        made.update(wrong, learning_rate=0.1)
    assert made.step == 0
    made.update([np.zeros((13, 7), np.float32)], learning_rate=0.1)


@pytest.mark.parametrize(
    ("rule", "wrong", "message"),
    [
        ("momentum", {}, "table ps keeps trace, no state given"),
        ("sgd", {"trace": []}, "table ps keeps no state, trace given"),
        ("adam", {"mu": []}, "table ps keeps mu and nu, mu given"),
        (
            "momentum",
            {"trace": [np.zeros(3, np.float32)]},
            r"table ps: trace of h1.b is float32\[3\], the block is float32\[7\]",
        ),
    ],
)
def test_slots_that_do_not_fit_are_refused(rule, wrong, message):
    made = table([whole("h1.b")], rule)
    with pytest.raises(RunError, match=message):
        made.load_slots(wrong)


def test_float64_is_not_cut_where_jax_would():
    made = table([whole("h1.b")], dtype="float64")
    made.update([np.full(7, 1e-12)], learning_rate=1.0)
    (after,) = made.values()
    assert after.dtype == np.float64
    assert (after == -1e-12).all()
