"""Dense tables: values, slots and updates."""

import jax
import numpy as np
import pytest
from support.initial import compute_values
from support.small_tables import (
    ALL,
    INITS,
    RATES,
    SHAPES,
    VARIANTS,
    block_of,
    case_id,
    make_gradients,
    make_table,
    update_table,
    whole_block,
)

from placer.errors import RunError
from placer.plan.settings.training import optimizers
from placer.tables import compiled_kernels


def test_values_begin_as_the_initializers_say():
    blocks = [whole_block("h1.w"), block_of("out.w", 700, 1400)]
    for block, value in zip(blocks, make_table(blocks).values(), strict=True):
        expected = compute_values(
            INITS[block.parameter],
            seed=5,
            name=block.parameter,
            shape=SHAPES[block.parameter],
            start=block.start,
            stop=block.stop,
            dtype="float32",
        )
        np.testing.assert_array_equal(value, expected.reshape(block.shape))


@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_slots_start_at_their_constants(case):
    initial = optimizers.read_rule(*case).first_slots
    slots = make_table(ALL, *case).slots()
    assert list(slots) == list(initial)
    for slot, arrays in slots.items():
        assert [array.shape for array in arrays] == list(SHAPES.values())
        assert all((array == np.float32(initial[slot])).all() for array in arrays)


@pytest.mark.parametrize("in_place", [True, False])
def test_values_are_aligned_read_only_views_of_one_buffer(in_place):
    table = make_table(ALL, "adam", in_place=in_place)
    for step in range(4):
        views = table.values()
        assert [view.shape for view in views] == list(SHAPES.values())
        assert all(view.ctypes.data % 64 == 0 for view in views)
        assert not any(view.flags.writeable for view in views)
        spans = [view.ctypes.data + view.nbytes for view in views]
        total = sum(-(-view.nbytes // 64) * 64 for view in views)
        assert max(spans) - views[0].ctypes.data <= total
        table.update(list(make_gradients(step).values()), learning_rate=0.1)


def test_gradients_may_be_overwritten_after_the_update():
    reusing, fresh = make_table(ALL, "adam"), make_table(ALL, "adam")
    buffers = [np.zeros(shape, np.float32) for shape in SHAPES.values()]
    for step in range(5):
        for buffer, gradient in zip(
            buffers, make_gradients(step).values(), strict=True
        ):
            buffer[...] = gradient
        reusing.update(buffers, learning_rate=0.1)
        for buffer in buffers:
            buffer.fill(np.nan)
        fresh.update(list(make_gradients(step).values()), learning_rate=0.1)
    for a, b in zip(reusing.values(), fresh.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_jax_gradients_are_multiplied_by_the_scale():
    ours, doubled = make_table(ALL), make_table(ALL)
    gradients = make_gradients(0)
    ours.update(
        [jax.numpy.asarray(g) for g in gradients.values()],
        learning_rate=0.1,
        scale=jax.numpy.float32(2.0),
    )
    doubled.update([2 * g for g in gradients.values()], learning_rate=0.1)
    for a, b in zip(ours.values(), doubled.values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("in_place", [True, False])
def test_the_padding_stays_zero(in_place):
    table = make_table(
        [whole_block("h1.b"), whole_block("gain")], "adam", in_place=in_place
    )
    for step in range(3):
        drawn = make_gradients(step)
        table.update([drawn["h1.b"], drawn["gain"]], learning_rate=0.1)
    (first, second) = table.values()
    flat = first.base
    assert flat.size == 32
    kept = np.zeros(32, np.float32)
    kept[:7], kept[16] = first, second
    np.testing.assert_array_equal(flat, kept)


def test_warm_up_changes_nothing():
    table = make_table(ALL, "adam")
    table.update(list(make_gradients(0).values()), learning_rate=0.1)
    before, slots = table.values(), table.slots()
    table.warm_up()
    assert table.step == 1
    for a, b in zip(before, table.values(), strict=True):
        np.testing.assert_array_equal(a, b)
    for slot, arrays in table.slots().items():
        for a, b in zip(slots[slot], arrays, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_nothing_is_compiled_after_warm_up(case, dtype, monkeypatch):
    table = make_table(ALL, *case, dtype)
    table.warm_up()
    monkeypatch.delattr(compiled_kernels, "compile_kernel")
    for step, rate in enumerate(RATES[:4]):
        drawn = list(make_gradients(step, table.dtype).values())
        update_table(table, drawn, rate, None if step % 2 else 0.5)
    assert table.step == 4


@pytest.mark.parametrize("rule", ["adam", "lamb"])
def test_nothing_is_compiled_after_warm_up_for_several_workers(rule, monkeypatch):
    table = make_table([whole_block("h1.b")], rule)
    table.warm_up(3)
    monkeypatch.delattr(compiled_kernels, "compile_kernel")
    chunk = [np.ones(7, np.float32)] * 3
    if rule == "adam":
        with table.update_in_chunks(learning_rate=0.1) as each:
            each.apply(0, 0, chunk)
    else:
        table.compute_directions(chunk[:1])
        table.apply_directions([1.0], learning_rate=0.1)
    assert table.step == 1


def test_load_replaces_values_and_keeps_slots():
    table = make_table(ALL, "momentum")
    table.update(list(make_gradients(0).values()), learning_rate=0.1)
    views, slots = table.values(), table.slots()
    kept = views[0].copy()
    loaded = [np.full(shape, 3.0, np.float32) for shape in SHAPES.values()]
    table.load(loaded)
    loaded[0].fill(9.0)
    assert (table.values()[0] == 3.0).all()
    np.testing.assert_array_equal(views[0], kept)
    np.testing.assert_array_equal(table.slots()["trace"][0], slots["trace"][0])
    assert table.step == 1


@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_a_table_continues_from_loaded_values_slots_and_step(case):
    one, other = make_table(ALL, *case), make_table(ALL, *case)
    for step in range(3):
        update_table(one, list(make_gradients(step).values()), RATES[step])
    other.load(one.values())
    other.load_slots(one.slots())
    other.step = one.step
    for table in (one, other):
        update_table(table, list(make_gradients(3).values()), RATES[3])
    for a, b in zip(one.values(), other.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_slots_are_copies():
    table = make_table([whole_block("h1.b")], "momentum")
    (trace,) = table.slots()["trace"]
    trace.fill(5.0)
    given = [np.full(7, 2.0, np.float32)]
    assert (table.slots()["trace"][0] == 0).all()
    table.load_slots({"trace": given})
    given[0].fill(5.0)
    assert (table.slots()["trace"][0] == 2.0).all()


def test_a_table_without_blocks_does_nothing():
    for in_place in (True, False):
        empty = make_table([], "adam", in_place=in_place)
        empty.warm_up()
        empty.update([], learning_rate=0.1)
        empty.load([])
        with empty.update_in_chunks(learning_rate=0.1):
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
            r" but the block is float32\[13, 7\]",
        ),
        ([np.zeros((13, 7))], r"is float64\[13, 7\], but the block is float32"),
    ],
)
def test_gradients_that_do_not_fit_raise(wrong, message):
    table = make_table([whole_block("h1.w")])
    with pytest.raises(RunError, match=message):
        table.update(wrong, learning_rate=0.1)
    assert table.step == 0
    table.update([np.zeros((13, 7), np.float32)], learning_rate=0.1)


@pytest.mark.parametrize(
    ("rule", "wrong", "message"),
    [
        ("momentum", {}, "table ps has trace, but the argument has no slots"),
        ("sgd", {"trace": []}, "table ps has no slots, but the argument has trace"),
        ("adam", {"mu": []}, "table ps has mu and nu, but the argument has mu"),
        (
            "momentum",
            {"trace": [np.zeros(3, np.float32)]},
            r"table ps: trace of h1.b is float32\[3\], but the block is float32\[7\]",
        ),
    ],
)
def test_slots_that_do_not_fit_raise(rule, wrong, message):
    table = make_table([whole_block("h1.b")], rule)
    with pytest.raises(RunError, match=message):
        table.load_slots(wrong)


def test_float64_keeps_its_precision():
    table = make_table([whole_block("h1.b")], dtype="float64")
    table.update([np.full(7, 1e-12)], learning_rate=1.0)
    (after,) = table.values()
    assert after.dtype == np.float64
    assert (after == -1e-12).all()
