"""Every optimizer rule against plain optax on whole parameters."""

import contextlib
import inspect

import jax
import numpy as np
import pytest
from support.small_tables import (
    ALL,
    ORACLES,
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

from placer.config import optimizers

TOLERANCE = {"float32": 1e-6, "float64": 1e-13}


def in_precision(dtype):
    return jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()


def held_against_optax(rule, hyper, dtype, made, blocks=ALL, mask=None):
    ours = table(blocks, rule, hyper, dtype)
    begin = dict(zip(SHAPES, ours.values(), strict=True))
    with in_precision(dtype):
        theirs = plain(rule, hyper, begin, made, mask)
    for each, rate in zip(made, RATES, strict=False):
        update(ours, list(each.values()), rate)
    assert ours.step == len(made)
    for name, value in zip(SHAPES, ours.values(), strict=True):
        assert value.dtype == dtype
        bound = TOLERANCE[dtype]
        np.testing.assert_allclose(value, theirs[name], bound, bound, err_msg=name)


@pytest.mark.parametrize("rule", sorted(ORACLES))
def test_defaults_are_those_of_optax(rule):
    theirs = inspect.signature(ORACLES[rule]).parameters
    for name, hyper in optimizers.find(rule).hyper.items():
        # Of these two optax says None for "there is no momentum".
        expected = (
            0.0 if (rule, name) == ("rmsprop", "momentum") else theirs[name].default
        )
        assert hyper.default == expected, name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_twenty_steps_equal_plain_optax(case, dtype):
    made = [gradients(step, dtype) for step in range(20)]
    held_against_optax(*case, dtype, made)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", ["adamw", "lion", "lamb", "lars"])
def test_weight_decay_is_masked_as_by_optax(rule, dtype):
    mask = {name: len(shape) > 1 for name, shape in SHAPES.items()}
    blocks = [whole(name, decays) for name, decays in mask.items()]
    made = [gradients(step, dtype) for step in range(20)]
    held_against_optax(rule, {"weight_decay": 0.3}, dtype, made, blocks, mask)


@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_zero_gradients_do_what_they_do_in_optax(case):
    none = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    held_against_optax(*case, "float32", [none, none, gradients(0), none])


@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_what_is_not_finite_spreads_as_in_optax(case):
    made = [gradients(step) for step in range(4)]
    made[1]["h1.w"][2, 3] = np.nan
    made[1]["out.w"][2, 3] = np.inf
    held_against_optax(*case, "float32", made)


def test_each_gradient_is_scaled():
    blocks = [whole("h1.w"), whole("h1.b")]
    made = [gradients(0)["h1.w"], gradients(0)["h1.b"]]
    ours, doubled = table(blocks), table(blocks)
    ours.update(made, learning_rate=0.1, scale=(2.0, np.float32(4.0)))
    doubled.update([2 * made[0], 4 * made[1]], learning_rate=0.1)
    for a, b in zip(ours.values(), doubled.values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", VARIANTS, ids=named)
def test_halves_are_computed_in_float32_and_rounded_once(case, dtype):
    half, wide = table(ALL, *case, dtype), table(ALL, *case)
    wide.load([value.astype(np.float32) for value in half.values()])
    wide.load_slots(
        {slot: [a.astype(np.float32) for a in s] for slot, s in half.slots().items()}
    )
    made = list(gradients(0, half.dtype).values())
    update(half, made, 0.05)
    update(wide, [gradient.astype(np.float32) for gradient in made], 0.05)
    if optimizers.find(case[0]).direction:  # that was rounded too
        for a, b in zip(half.values(), wide.values(), strict=True):
            a, b = a.astype(np.float64), b.astype(np.float64)
            np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2)
        return
    for a, b in zip(half.values(), wide.values(), strict=True):
        np.testing.assert_array_equal(a, b.astype(half.dtype))
    for slot, arrays in half.slots().items():
        for a, b in zip(arrays, wide.slots()[slot], strict=True):
            np.testing.assert_array_equal(a, b.astype(half.dtype))
