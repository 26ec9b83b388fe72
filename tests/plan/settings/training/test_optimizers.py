"""The declarations of the optimizer rules."""

import doctest
import re
from math import inf, isnan, nan

import pytest
from msgspec import ValidationError
from support.small_tables import OPTAX_RULES, trust_ratio

from placer.plan.settings.training import optimizers
from placer.plan.settings.training.optimizers import read_rule


def test_rules_and_their_slots():
    slots = {name: rule.slots for name, rule in optimizers.DENSE_RULES.items()}
    assert slots == {
        "adadelta": ("e_g", "e_x"),
        "adagrad": ("sum_of_squares",),
        "adam": ("mu", "nu"),
        "adamax": ("mu", "nu"),
        "adamw": ("mu", "nu"),
        "ftrl": ("linear", "sum_of_squares"),
        "lamb": ("mu", "nu"),
        "lars": ("trace",),
        "lion": ("mu",),
        "momentum": ("trace",),
        "nadam": ("mu", "nu"),
        "nesterov": ("trace",),
        "rmsprop": ("nu", "mu", "trace"),
        "sgd": (),
    }


def test_lamb_and_lars_are_two_phase_rules():
    two = [
        name
        for name, rule in sorted(optimizers.DENSE_RULES.items())
        if rule.is_two_phase
    ]
    assert two == ["lamb", "lars"]


@pytest.mark.parametrize("name", sorted(optimizers.DENSE_RULES))
def test_declarations_are_complete(name):
    rule = optimizers.DENSE_RULES[name]
    assert rule.__doc__
    assert rule.flops > 0
    assert {*rule.initial_values, *rule.conditions} <= set(rule.slots)
    used = {*rule.initial_values.values(), *rule.conditions.values()}
    declared = optimizers.hyperparameters(rule)
    assert used <= {*declared}
    for key, hyper in declared.items():
        assert type(hyper.default) is hyper.type, key
        assert hyper.doc
    assert (
        read_rule(name, {key: each.default for key, each in declared.items()}) == rule()
    )


@pytest.mark.parametrize(
    ("hyper", "slots"),
    [
        ({}, {"nu": 0.0}),
        ({"centered": True}, {"nu": 0.0, "mu": 0.0}),
        ({"momentum": 0.9, "initial_scale": 1}, {"nu": 1.0, "trace": 0.0}),
        (
            {"momentum": 0.9, "centered": True},
            {"nu": 0.0, "mu": 0.0, "trace": 0.0},
        ),
    ],
)
def test_rmsprop_has_only_the_slots_that_it_needs(hyper, slots):
    assert read_rule("rmsprop", hyper).first_slots == slots


def test_the_slot_of_adagrad_is_initialized_with_its_hyperparameter():
    assert optimizers.Adagrad().first_slots == {"sum_of_squares": 0.1}
    rule = optimizers.Adagrad(initial_accumulator_value=0.5)
    assert rule.first_slots == {"sum_of_squares": 0.5}


def test_missing_hyperparameters_have_their_defaults():
    assert read_rule("adam", {"b1": 0}).hyper == {
        "b1": 0.0,
        "b2": 0.999,
        "eps": 1e-8,
    }
    assert read_rule("sgd", {}).hyper == {}
    assert read_rule("rmsprop", {"centered": True}).hyper["centered"] is True


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("adamm", {}, "unknown optimizer 'adamm'; did you mean 'adam'?"),
        ("adam", {"beta1": 0.9}, "unknown field `beta1`"),
        ("sgd", {"momentum": 0.9}, "unknown field `momentum`"),
        ("momentum", {"momentum": 1.0}, "< 1.0 - at `$.momentum`"),
        ("adam", {"eps": -1}, ">= 0.0 - at `$.eps`"),
        ("adam", {"b2": True}, "Expected `float`, got `bool`"),
        ("rmsprop", {"centered": 1}, "Expected `bool`, got `int`"),
    ],
)
def test_invalid_rules_of_a_plan_are_refused(name, hyper, message):
    with pytest.raises(ValidationError, match=re.escape(message)):
        read_rule(name, hyper)


def test_every_rule_has_a_reference_implementation():
    assert optimizers.DENSE_RULES.keys() == OPTAX_RULES.keys()


def test_the_trust_ratio_is_one_where_a_norm_is_zero():
    assert trust_ratio(0.0, 4.0, (0.5, 0.0)) == 1.0
    assert trust_ratio(4.0, 0.0, (0.5, 1.0)) == 1.0
    assert trust_ratio(16.0, 4.0, (0.5, 2.0)) == 0.5


def test_the_trust_ratio_of_norms_that_are_not_finite():
    assert isnan(trust_ratio(nan, 4.0))
    assert isnan(trust_ratio(4.0, nan))
    assert isnan(trust_ratio(nan, 0.0))
    assert isnan(trust_ratio(0.0, nan))
    assert isnan(trust_ratio(inf, inf))
    assert trust_ratio(inf, 4.0) == inf


def test_the_constants_of_the_trust_ratio():
    assert optimizers.Lamb(eps=0.5).trust_ratio == (1.0, 0.0)
    assert optimizers.Lars().trust_ratio == (0.001, 0.0)


def test_the_examples_of_the_docstrings():
    assert doctest.testmod(optimizers) == doctest.TestResults(failed=0, attempted=2)
