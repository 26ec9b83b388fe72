"""The declarations of the optimizer rules."""

import doctest
from math import inf, isnan, nan

import pytest
from support.small_tables import OPTAX_RULES, trust_ratio

from placer.plan.settings.training import optimizers


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
    assert rule.doc
    assert rule.flops > 0
    assert {*rule.initial_values, *rule.conditions} <= set(rule.slots)
    assert {*rule.initial_values.values(), *rule.conditions.values()} <= set(rule.hyper)
    for key, hyper in rule.hyper.items():
        assert type(hyper.default) is hyper.type, key
        assert optimizers.check(name, {key: hyper.default}) is None


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
    assert optimizers.slots("rmsprop", hyper) == slots


def test_the_slot_of_adagrad_is_initialized_with_its_hyperparameter():
    assert optimizers.slots("adagrad", {}) == {"sum_of_squares": 0.1}
    hyper = {"initial_accumulator_value": 0.5}
    assert optimizers.slots("adagrad", hyper) == {"sum_of_squares": 0.5}


def test_missing_hyperparameters_have_their_defaults():
    assert optimizers.complete("adam", {"b1": 0}) == {
        "b1": 0.0,
        "b2": 0.999,
        "eps": 1e-8,
    }
    assert optimizers.complete("sgd", {}) == {}
    assert optimizers.complete("rmsprop", {"centered": True})["centered"] is True


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("adamm", {}, "unknown optimizer 'adamm'; did you mean 'adam'?"),
        ("adam", {"beta1": 0.9}, "unknown hyperparameter of 'adam' 'beta1'"),
        ("sgd", {"momentum": 0.9}, "optimizer 'sgd' has no hyperparameter"),
        ("momentum", {"momentum": 1.0}, "'momentum' must be less than 1, not 1.0"),
        ("adam", {"eps": -1}, "'eps' must be at least 0"),
        ("adam", {"b2": "big"}, "'b2' must be a number"),
        ("adam", {"b2": True}, "'b2' must be a number"),
        ("adam", {"weight_decay": 0.1}, "unknown hyperparameter of 'adam'"),
        ("adamw", {"weight_decay": -0.1}, "'weight_decay' must be at least 0"),
        ("rmsprop", {"centered": 1}, "'centered' must be true or false, not 1"),
        ("rmsprop", {"centered": "no"}, "must be true or false, not the text 'no'"),
    ],
)
def test_invalid_hyperparameters_are_reported(name, hyper, message):
    assert message in optimizers.check(name, hyper)


def test_valid_hyperparameters_pass_the_check():
    assert optimizers.check("adam", {"b1": 0.8, "eps": 1e-6}) is None
    assert optimizers.check("rmsprop", {"centered": False}) is None
    assert optimizers.check("sgd", {}) is None


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
    assert optimizers.trust_ratio_constants("lamb", {"eps": 0.5}) == (1.0, 0.0)
    assert optimizers.trust_ratio_constants("lars", {}) == (0.001, 0.0)


def test_the_examples_of_the_docstrings():
    assert doctest.testmod(optimizers) == doctest.TestResults(failed=0, attempted=2)
