"""Tables on devices, compared with optax and with tables in host memory."""

import contextlib
from functools import partial

import jax
import numpy as np
import pytest
from support.small_tables import (
    ALL,
    RATES,
    SHAPES,
    VARIANTS,
    case_id,
    initial_values,
    make_gradients,
    make_table,
    planned,
    run_optax,
    update_table,
    whole_block,
)

from placer.errors import RunError
from placer.runtime.exchange.devices import Devices
from placer.tables.device import DeviceTable

TOLERANCE = {"float32": 1e-6, "float64": 1e-13}


def in_precision(dtype):
    return jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()


def on_devices(blocks, rule="sgd", hyper=None, dtype="float32", to="gpu:0-1"):
    cpu = jax.devices("cpu")
    sets = {"cpu:0": cpu[:1], "gpu:0": cpu[1:2], "gpu:0-1": cpu[1:3]}
    devices = Devices({name: tuple(each) for name, each in sets.items()})
    put = partial(devices.copy_to_devices, to=to)
    initial = initial_values(blocks, dtype)
    return DeviceTable(planned(blocks, rule, hyper, name="gpus"), dtype, initial, put)


def check_values(table, expected, dtype="float32"):
    bound = TOLERANCE[dtype]
    for name, value in zip(SHAPES, table.values(), strict=True):
        assert value.dtype == dtype
        np.testing.assert_allclose(value, expected[name], bound, bound, err_msg=name)


@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_steps_equal_plain_optax(case):
    dtype = "float64"
    gradients = [make_gradients(step, dtype) for step in range(3)]
    with in_precision(dtype):
        ours = on_devices(ALL, *case, dtype)
        initial = {n: np.asarray(v) for n, v in zip(SHAPES, ours.values(), strict=True)}
        for each, rate in zip(gradients, RATES, strict=False):
            update_table(ours, list(each.values()), rate)
        assert ours.step == 3
        check_values(ours, run_optax(*case, initial, gradients), dtype)


@pytest.mark.parametrize("rule", ["adamw", "lion", "lamb", "lars"])
def test_weight_decay_is_masked(rule):
    mask = {name: len(shape) > 1 for name, shape in SHAPES.items()}
    blocks = [whole_block(name, decays) for name, decays in mask.items()]
    ours = on_devices(blocks, rule, {"weight_decay": 0.3})
    initial = {n: np.asarray(v) for n, v in zip(SHAPES, ours.values(), strict=True)}
    gradients = [make_gradients(step) for step in range(3)]
    for each, rate in zip(gradients, RATES, strict=False):
        update_table(ours, list(each.values()), rate)
    check_values(ours, run_optax(rule, {"weight_decay": 0.3}, initial, gradients, mask))


@pytest.mark.parametrize("scale", [0.5, np.float32(0.5), (0.5, 0.25, 2.0, 1.0)])
@pytest.mark.parametrize("rule", ["adam", "lamb"])
def test_gradients_are_scaled_as_in_a_dense_table(rule, scale):
    ours, theirs = on_devices(ALL, rule), make_table(ALL, rule)
    for each in (ours, theirs):
        update_table(each, list(make_gradients(0).values()), 0.1, scale)
    check_values(ours, dict(zip(SHAPES, theirs.values(), strict=True)))


def test_half_floats_are_computed_in_float32_and_rounded_once():
    ours, theirs = (
        on_devices(ALL, "adam", dtype="bfloat16"),
        make_table(ALL, "adam", dtype="bfloat16"),
    )
    for step in range(3):
        for each in (ours, theirs):
            update_table(each, list(make_gradients(step, "bfloat16").values()), 0.1)
    for mine, yours in zip(ours.values(), theirs.values(), strict=True):
        wide = np.asarray(mine, np.float32), np.asarray(yours, np.float32)
        np.testing.assert_allclose(*wide, rtol=2**-7)  # the last bit may differ


def test_initial_values_are_those_of_a_dense_table_and_never_overwritten():
    ours = on_devices(ALL, "momentum")
    before = ours.values()
    kept = [np.asarray(value).copy() for value in before]
    for mine, yours in zip(kept, make_table(ALL, "momentum").values(), strict=True):
        np.testing.assert_array_equal(mine, yours)
    update_table(ours, list(make_gradients(0).values()), 0.1)
    for value, copy in zip(before, kept, strict=True):
        np.testing.assert_array_equal(value, copy)


@pytest.mark.parametrize("rule", ["momentum", "adam", "lars"])
def test_warm_up_changes_nothing(rule):
    warmed, cold = on_devices(ALL, rule), on_devices(ALL, rule)
    warmed.warm_up()
    for each in (warmed, cold):
        update_table(each, list(make_gradients(0).values()), 0.1)
    assert warmed.step == cold.step == 1
    for one, other in zip(warmed.values(), cold.values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_loaded_values_are_on_every_device():
    ours = on_devices(ALL)
    values = [np.full(block.shape, 3, np.float32) for block in ALL]
    ours.load(values)
    assert all(len(value.devices()) == 2 for value in ours.values())
    assert all((np.asarray(value) == 3).all() for value in ours.values())


def test_gradients_that_do_not_fit_raise():
    ours = on_devices(ALL)
    gradients = list(make_gradients(0).values())
    with pytest.raises(RunError, match="3 gradients for 4 blocks"):
        ours.update(gradients[1:], learning_rate=0.1)
    with pytest.raises(RunError, match=r"gradient of h1.w is float64\[13, 7\]"):
        ours.update([gradients[0].astype("f8"), *gradients[1:]], learning_rate=0.1)


@pytest.mark.parametrize(
    "case", [("adam", {}), ("lamb", {}), ("rmsprop", {"momentum": 0.9})]
)
def test_a_dense_table_continues_from_the_state_of_a_device_table(case):
    gradients = [list(make_gradients(step).values()) for step in range(4)]
    device, dense = on_devices(ALL, *case), make_table(ALL, *case)
    for each, rate in zip(gradients[:2], RATES, strict=False):
        update_table(device, each, rate)
    dense.load([np.asarray(value) for value in device.values()])
    dense.load_slots(device.slots())
    dense.step = device.step
    other = on_devices(ALL, *case)
    other.load(dense.values())
    other.load_slots(dense.slots())
    other.step = dense.step
    for each in gradients[2:]:
        for table in (device, dense, other):
            update_table(table, each, 0.01)
    values = map(np.asarray, device.values())
    check_values(dense, dict(zip(SHAPES, values, strict=True)))
    for ours, theirs in zip(other.values(), device.values(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_slots_of_another_rule_raise():
    message = "table gpus has trace, but the argument has mu and nu"
    with pytest.raises(RunError, match=message):
        on_devices(ALL, "momentum").load_slots(make_table(ALL, "adam").slots())
