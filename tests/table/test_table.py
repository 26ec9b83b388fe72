"""Dense tables against plain optax, and what they promise about their memory."""

import contextlib
from functools import partial

import jax
import numpy as np
import optax
import pytest

from placer.errors import RunError
from placer.runtime import initial
from placer.runtime.table import Block, Table

SHAPES = {"h1.w": (13, 7), "h1.b": (7,), "out.w": (7, 300), "gain": ()}
INITS = {"h1.w": "normal", "h1.b": "zeros", "out.w": "xavier_uniform", "gain": "ones"}
RULES = [
    ("sgd", {}, optax.sgd),
    ("momentum", {"momentum": 0.8}, partial(optax.sgd, momentum=0.8)),
    ("adam", {}, optax.adam),
    (
        "adam",
        {"b1": 0.8, "b2": 0.99, "eps": 1e-3},
        partial(optax.adam, b1=0.8, b2=0.99, eps=1e-3),
    ),
]


def whole(name):
    n = int(np.prod(SHAPES[name]))
    return Block(name, name, SHAPES[name], 0, n, SHAPES[name])


def cut(name, count, index):
    n = int(np.prod(SHAPES[name]))
    low, high = n * index // count, n * (index + 1) // count
    return Block(name, f"{name}.block{index}", (high - low,), low, high, SHAPES[name])


def table(blocks, rule="sgd", hyper=None, dtype="float32"):
    return Table("ps", blocks, rule, hyper or {}, dtype=dtype, seed=5, inits=INITS)


ALL = [whole(name) for name in SHAPES]


def gradients(step, dtype="float32"):
    rng = np.random.default_rng(step)
    return {name: rng.normal(size=s).astype(dtype) for name, s in SHAPES.items()}


def rate_at(step):
    return 0.05 / (1 + step)


def test_values_begin_as_the_initialisers_say():
    blocks = [whole("h1.w"), cut("out.w", 3, 1)]
    for block, value in zip(blocks, table(blocks).values(), strict=True):
        expected = initial.values(
            INITS[block.parameter],
            seed=5,
            name=block.parameter,
            shape=block.parameter_shape,
            start=block.start,
            stop=block.stop,
            dtype="float32",
        )
        np.testing.assert_array_equal(value, expected.reshape(block.shape))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rule", "hyper", "plain"), RULES)
def test_twenty_steps_equal_plain_optax(rule, hyper, plain, dtype):
    transform = plain(rate_at)  # the schedule by optax's own count
    x64 = dtype == "float64"
    with jax.enable_x64(True) if x64 else contextlib.nullcontext():
        ours = table(ALL, rule, hyper, dtype)
        theirs = dict(zip(SHAPES, ours.values(), strict=True))
        state = transform.init(theirs)
        for step in range(20):
            made = gradients(step, dtype)
            change, state = transform.update(made, state)
            theirs = optax.apply_updates(theirs, change)
            ours.update([made[name] for name in SHAPES], learning_rate=rate_at(step))
    assert ours.step == 20
    tolerance = 1e-12 if x64 else 1e-6
    for name, value in zip(SHAPES, ours.values(), strict=True):
        assert value.dtype == dtype
        np.testing.assert_allclose(value, theirs[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rule", "hyper", "_"), RULES)
def test_slices_on_many_tables_have_the_bits_of_one_table(rule, hyper, _):
    one = table([whole("out.w")], rule, hyper)
    slices = [table([cut("out.w", 5, i)], rule, hyper) for i in range(5)]
    for step in range(10):
        made = gradients(step)["out.w"]
        scale = np.float32(0.3 + step)
        one.update([made], learning_rate=rate_at(step), scale=scale)
        for part in slices:
            (block,) = part.blocks
            piece = made.ravel()[block.start : block.stop]
            part.update([piece], learning_rate=rate_at(step), scale=scale)
    together = np.concatenate([part.values()[0] for part in slices])
    np.testing.assert_array_equal(together, one.values()[0].ravel())
    for slot, (state,) in one.slots().items():
        parts = np.concatenate([part.slots()[slot][0] for part in slices])
        np.testing.assert_array_equal(parts, state.ravel())


def test_views_are_aligned_read_only_and_of_one_buffer():
    made = table(ALL, "adam")
    for _ in range(2):
        views = made.values()
        assert [view.shape for view in views] == list(SHAPES.values())
        assert all(view.ctypes.data % 64 == 0 for view in views)
        assert not any(view.flags.writeable for view in views)
        spans = [view.ctypes.data + view.nbytes for view in views]
        total = sum(-(-view.nbytes // 64) * 64 for view in views)
        assert max(spans) - views[0].ctypes.data <= total
        made.update(list(gradients(0).values()), learning_rate=0.1)


@pytest.mark.parametrize("rule", ["sgd", "momentum", "adam"])
def test_views_stay_what_they_were_after_updates(rule):
    made = table(ALL, rule)
    held, copies = [], []
    for step in range(6):
        held.append(made.values())
        copies.append([view.copy() for view in made.values()])
        made.update(list(gradients(step).values()), learning_rate=0.1)
    for views, before in zip(held, copies, strict=True):
        for view, copy in zip(views, before, strict=True):
            np.testing.assert_array_equal(view, copy)
    assert not np.array_equal(held[0][0], made.values()[0])


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


def test_the_padding_stays_zero():
    made = table([whole("h1.b"), whole("gain")], "adam")
    for step in range(3):
        drawn = gradients(step)
        made.update([drawn["h1.b"], drawn["gain"]], learning_rate=0.1)
    (first, second) = made.values()
    flat = first.base
    assert flat.size == 32
    kept = np.zeros(32, np.float32)
    kept[:7], kept[16] = first, second
    np.testing.assert_array_equal(flat, kept)


def test_warming_up_compiles_and_changes_nothing():
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


def test_one_compilation_serves_every_step(caplog):
    made = table([cut("out.w", 7, 0)], "adam", {"b1": 0.77})
    made.warm()
    with jax.log_compiles(True), caplog.at_level("WARNING", logger="jax"):
        for step in range(4):
            gradient = np.ones(300, np.float32)
            scale = None if step % 2 else 0.5
            made.update([gradient], learning_rate=rate_at(step), scale=scale)
    assert not [r for r in caplog.records if "apply" in r.getMessage()]


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


def test_slots_are_zero_before_the_first_update():
    assert all((a == 0).all() for a in table(ALL, "adam").slots()["nu"])


def test_a_table_without_blocks_does_nothing():
    empty = table([], "adam")
    empty.warm()
    empty.update([], learning_rate=0.1)
    empty.load([])
    assert empty.values() == ()
    assert empty.step == 1


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


def test_float64_without_x64_is_not_cut_silently():
    made = table([whole("h1.w")], dtype="float64")
    with pytest.raises(AssertionError, match="x64"):
        made.update([np.zeros((13, 7))], learning_rate=0.1)
