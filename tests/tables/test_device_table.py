"""Tables on devices against plain optax, and against tables in memory."""

import contextlib
from functools import partial

import jax
import numpy as np
import pytest
from support.small_tables import (
    ALL,
    INITS,
    RATES,
    SHAPES,
    VARIANTS,
    gradients,
    named,
    plain,
    table,
    update,
    whole,
)

from placer.errors import RunError
from placer.runtime.program.devices import Devices
from placer.tables.device import DeviceTable

TOLERANCE = {"float32": 1e-6, "float64": 1e-13}


def in_precision(dtype):
    return jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()


def on_devices(blocks, rule="sgd", hyper=None, dtype="float32", to="gpu:0-1"):
    cpu = jax.devices("cpu")
    devices = Devices({"cpu:0": cpu[0], "gpu:0": cpu[1], "gpu:1": cpu[2]})
    put = partial(devices.put, to=to)
    how = {"dtype": dtype, "seed": 5, "inits": INITS, "put": put}
    return DeviceTable("gpus", blocks, rule, hyper or {}, **how)


def held_alike(found, wanted, dtype="float32"):
    bound = TOLERANCE[dtype]
    for name, value in zip(SHAPES, found.values(), strict=True):
        assert value.dtype == dtype
        np.testing.assert_allclose(value, wanted[name], bound, bound, err_msg=name)


@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_steps_equal_plain_optax(case):
    dtype = "float64"
    made = [gradients(step, dtype) for step in range(3)]
    with in_precision(dtype):
        ours = on_devices(ALL, *case, dtype)
        begin = {n: np.asarray(v) for n, v in zip(SHAPES, ours.values(), strict=True)}
        for each, rate in zip(made, RATES, strict=False):
            update(ours, list(each.values()), rate)
        assert ours.step == 3
        held_alike(ours, plain(*case, begin, made), dtype)


@pytest.mark.parametrize("rule", ["adamw", "lion", "lamb", "lars"])
def test_weight_decay_is_for_those_that_decay(rule):
    mask = {name: len(shape) > 1 for name, shape in SHAPES.items()}
    blocks = [whole(name, decays) for name, decays in mask.items()]
    ours = on_devices(blocks, rule, {"weight_decay": 0.3})
    begin = {n: np.asarray(v) for n, v in zip(SHAPES, ours.values(), strict=True)}
    made = [gradients(step) for step in range(3)]
    for each, rate in zip(made, RATES, strict=False):
        update(ours, list(each.values()), rate)
    held_alike(ours, plain(rule, {"weight_decay": 0.3}, begin, made, mask))


@pytest.mark.parametrize("scale", [0.5, np.float32(0.5), (0.5, 0.25, 2.0, 1.0)])
@pytest.mark.parametrize("rule", ["adam", "lamb"])
def test_gradients_are_scaled_as_in_memory(rule, scale):
    ours, theirs = on_devices(ALL, rule), table(ALL, rule)
    for each in (ours, theirs):
        update(each, list(gradients(0).values()), 0.1, scale)
    held_alike(ours, dict(zip(SHAPES, theirs.values(), strict=True)))


def test_halves_are_computed_wide_and_rounded_once():
    ours, theirs = (
        on_devices(ALL, "adam", dtype="bfloat16"),
        table(ALL, "adam", dtype="bfloat16"),
    )
    for step in range(3):
        for each in (ours, theirs):
            update(each, list(gradients(step, "bfloat16").values()), 0.1)
    for mine, yours in zip(ours.values(), theirs.values(), strict=True):
        wide = np.asarray(mine, np.float32), np.asarray(yours, np.float32)
        np.testing.assert_allclose(*wide, rtol=2**-7)  # a last bit, now and then


def test_values_begin_the_same_and_stay_with_who_has_them():
    ours = on_devices(ALL, "momentum")
    before = ours.values()
    kept = [np.asarray(value).copy() for value in before]
    for mine, yours in zip(kept, table(ALL, "momentum").values(), strict=True):
        np.testing.assert_array_equal(mine, yours)
    update(ours, list(gradients(0).values()), 0.1)
    for value, copy in zip(before, kept, strict=True):
        np.testing.assert_array_equal(value, copy)


@pytest.mark.parametrize("rule", ["momentum", "adam", "lars"])
def test_warming_leaves_no_trace(rule):
    warmed, cold = on_devices(ALL, rule), on_devices(ALL, rule)
    warmed.warm()
    for each in (warmed, cold):
        update(each, list(gradients(0).values()), 0.1)
    assert warmed.step == cold.step == 1
    for one, other in zip(warmed.values(), cold.values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_loaded_values_are_on_every_device():
    ours = on_devices(ALL)
    given = [np.full(block.shape, 3, np.float32) for block in ALL]
    ours.load(given)
    assert all(len(value.devices()) == 2 for value in ours.values())
    assert all((np.asarray(value) == 3).all() for value in ours.values())


def test_what_does_not_fit_is_refused():
    ours = on_devices(ALL)
    made = list(gradients(0).values())
    with pytest.raises(RunError, match="3 gradients for 4 blocks"):
        ours.update(made[1:], learning_rate=0.1)
    with pytest.raises(RunError, match=r"gradient of h1.w is float64\[13, 7\]"):
        ours.update([made[0].astype("f8"), *made[1:]], learning_rate=0.1)
