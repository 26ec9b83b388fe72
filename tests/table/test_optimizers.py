"""The declarations of the optimizer rules."""

import pytest

from placer.graph import optimizers


def test_rules_and_their_slots():
    slots = {name: optimizers.find(name).slots for name in optimizers.names()}
    assert slots == {"adam": ("mu", "nu"), "momentum": ("trace",), "sgd": ()}


def test_defaults_fill_what_is_not_given():
    assert optimizers.complete("adam", {"b1": 0}) == {
        "b1": 0.0,
        "b2": 0.999,
        "eps": 1e-8,
    }
    assert optimizers.complete("sgd", {}) == {}


@pytest.mark.parametrize(
    ("name", "hyper", "message"),
    [
        ("adamm", {}, "unknown optimizer 'adamm'; did you mean 'adam'?"),
        ("adam", {"beta1": 0.9}, "unknown hyperparameter of 'adam' 'beta1'"),
        ("sgd", {"momentum": 0.9}, "optimizer 'sgd' has no hyperparameter"),
        ("momentum", {"momentum": 1.0}, "'momentum' must be less than 1, not 1.0"),
        ("adam", {"eps": -1}, "'eps' must be at least 0"),
        ("adam", {"b2": "big"}, "'b2' must be a number"),
    ],
)
def test_bad_rules_say_what_is_wrong(name, hyper, message):
    assert message in optimizers.check(name, hyper)


def test_good_rules_pass_the_check():
    assert optimizers.check("adam", {"b1": 0.8, "eps": 1e-6}) is None
    assert optimizers.check("sgd", {}) is None
