"""Every optimizer rule compared with optax, on whole parameters."""

import contextlib
import inspect

import jax
import numpy as np
import pytest
from support.small_tables import (
    ALL,
    OPTAX_RULES,
    RATES,
    SHAPES,
    VARIANTS,
    case_id,
    make_gradients,
    make_table,
    run_optax,
    update_table,
    whole_block,
)

from placer.plan.settings.training import optimizers
from placer.tables.optimizer_rules import arrays_of, kernels_of

TOLERANCE = {"float32": 1e-6, "float64": 1e-13}


def in_precision(dtype):
    return jax.enable_x64(True) if dtype == "float64" else contextlib.nullcontext()


def check_against_optax(rule, hyper, dtype, gradients, blocks=ALL, mask=None):
    ours = make_table(blocks, rule, hyper, dtype)
    initial = dict(zip(SHAPES, ours.values(), strict=True))
    with in_precision(dtype):
        theirs = run_optax(rule, hyper, initial, gradients, mask)
    for each, rate in zip(gradients, RATES, strict=False):
        update_table(ours, list(each.values()), rate)
    assert ours.step == len(gradients)
    for name, value in zip(SHAPES, ours.values(), strict=True):
        assert value.dtype == dtype
        bound = TOLERANCE[dtype]
        np.testing.assert_allclose(value, theirs[name], bound, bound, err_msg=name)


@pytest.mark.parametrize("rule", sorted(OPTAX_RULES))
def test_defaults_are_those_of_optax(rule):
    theirs = inspect.signature(OPTAX_RULES[rule]).parameters
    for name, hyper in optimizers.hyperparameters(optimizers.RULES[rule]).items():
        # optax writes "no momentum" as None.
        expected = (
            0.0 if (rule, name) == ("rmsprop", "momentum") else theirs[name].default
        )
        assert hyper.default == expected, name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_twenty_steps_equal_plain_optax(case, dtype):
    gradients = [make_gradients(step, dtype) for step in range(20)]
    check_against_optax(*case, dtype, gradients)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", ["adamw", "lion", "lamb", "lars"])
def test_weight_decay_is_masked_as_by_optax(rule, dtype):
    mask = {name: len(shape) > 1 for name, shape in SHAPES.items()}
    blocks = [whole_block(name, decays) for name, decays in mask.items()]
    gradients = [make_gradients(step, dtype) for step in range(20)]
    check_against_optax(rule, {"weight_decay": 0.3}, dtype, gradients, blocks, mask)


@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_zero_gradients_have_the_same_effect_as_in_optax(case):
    none = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    check_against_optax(*case, "float32", [none, none, make_gradients(0), none])


@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_non_finite_values_spread_as_in_optax(case):
    gradients = [make_gradients(step) for step in range(4)]
    gradients[1]["h1.w"][2, 3] = np.nan
    gradients[1]["out.w"][2, 3] = np.inf
    check_against_optax(*case, "float32", gradients)


def test_each_gradient_is_scaled():
    blocks = [whole_block("h1.w"), whole_block("h1.b")]
    gradients = [make_gradients(0)["h1.w"], make_gradients(0)["h1.b"]]
    ours, doubled = make_table(blocks), make_table(blocks)
    ours.update(gradients, learning_rate=0.1, scale=(2.0, np.float32(4.0)))
    doubled.update([2 * gradients[0], 4 * gradients[1]], learning_rate=0.1)
    for a, b in zip(ours.values(), doubled.values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_half_floats_are_computed_in_float32_and_rounded_once(case, dtype):
    half, wide = make_table(ALL, *case, dtype), make_table(ALL, *case)
    wide.load([value.astype(np.float32) for value in half.values()])
    wide.load_slots(
        {slot: [a.astype(np.float32) for a in s] for slot, s in half.slots().items()},
    )
    gradients = list(make_gradients(0, half.dtype).values())
    update_table(half, gradients, 0.05)
    update_table(wide, [gradient.astype(np.float32) for gradient in gradients], 0.05)
    if optimizers.RULES[case[0]].is_two_phase:  # that was rounded too
        for a, b in zip(half.values(), wide.values(), strict=True):
            a, b = a.astype(np.float64), b.astype(np.float64)
            np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-2)
        return
    for a, b in zip(half.values(), wide.values(), strict=True):
        np.testing.assert_array_equal(a, b.astype(half.dtype))
    for slot, arrays in half.slots().items():
        for a, b in zip(arrays, wide.slots()[slot], strict=True):
            np.testing.assert_array_equal(a, b.astype(half.dtype))


@pytest.mark.parametrize("case", VARIANTS, ids=case_id)
def test_a_rule_reads_and_writes_the_slots_that_it_declares(case):
    rule, hyper = case
    slots = [*optimizers.read_rule(rule, hyper).first_slots]
    phases = kernels_of(optimizers.read_rule(rule, hyper))
    assert len(phases) == 1 + optimizers.RULES[rule].is_two_phase
    arrays = [name for kernel in phases for name in arrays_of(kernel)]
    assert [name for name in arrays if name != "value"] == slots
    assert "value" in arrays_of(phases[-1])


def test_a_number_that_a_rule_reads_must_be_a_field_of_step_numbers():
    for name in optimizers.RULES:  # those without a variant above, too
        for kernel in kernels_of(optimizers.read_rule(name, {})):
            arrays_of(kernel)

    def rule(value, gradient, n):
        return (value - n.rate * n.gamma * gradient,)

    with pytest.raises(
        TypeError, match="'rule' reads 'gamma', which is not a field of"
    ):
        arrays_of(rule)
