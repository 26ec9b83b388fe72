"""Optimizers that placer cannot run are errors with a way out."""

from __future__ import annotations

from itertools import count

import jax
import jax.numpy as jnp
import optax
import pytest
from optax import contrib

from placer.errors import PlacerError
from placer.ops.transformations.describe import describe
from placer.place.types import TensorType

TYPES = {"w": TensorType("float64", (4, 3)), "b": TensorType("float64", (3,))}


def of(update, init=lambda params: ()):
    """Return a function for an optimizer with these functions."""
    return lambda: optax.GradientTransformation(init, update)


def unused(learning_rate):
    del learning_rate
    return optax.adam(0.1)


def injected(learning_rate):
    return optax.inject_hyperparams(optax.adam)(learning_rate)


def printing(gradients, state, params):
    del params
    jax.debug.print("{}", gradients["b"])
    return gradients, state


counts = count()


def counting():
    return optax.sgd(float(next(counts)))


ERRORS = {
    "a changing value": (counting, "its traces differ: .* or changes a global value"),
    "loss of lbfgs": (optax.lbfgs, "needs 'value', 'grad', and 'value_fn'"),
    "loss of polyak_sgd": (optax.polyak_sgd, "needs 'value'"),
    "loss in a chain": (
        lambda: optax.chain(optax.adam(0.1), contrib.reduce_on_plateau()),
        "needs 'value'",
    ),
    "two copies": (lambda: optax.lookahead(optax.sgd(0.1), 3, 0.5), "two copies"),
    "no optimizer": (lambda: 3, "returns int, not an optax GradientTransformation"),
    "rate without effect": (unused, "'unused' takes learning_rate, but"),
    "rate in the state": (injected, "the first state of 'injected' depends"),
    "text in the state": (
        of(lambda g, s, p: (g, s), lambda p: {"kind": "a"}),
        "has 'a' at kind, which is not an array",
    ),
    "complex state": (
        of(lambda g, s, p: (g, s), lambda p: {"z": jnp.zeros(3, complex)}),
        "has complex numbers at z",
    ),
    "float8 state": (
        of(lambda g, s, p: (g, s), lambda p: {"m": jnp.zeros(3, jnp.float8_e5m2)}),
        "has float8_e5m2 at m, which a checkpoint cannot store",
    ),
    "int4 state": (
        of(lambda g, s, p: (g, s), lambda p: {"m": jnp.zeros(3, jnp.int4)}),
        "has int4 at m, which a checkpoint cannot store",
    ),
    "another structure": (
        of(lambda g, s, p: (g, {"a": s["a"]}), lambda p: {"a": 1, "b": 2}),
        "changes the structure of its state, first at b",
    ),
    "another dtype": (
        of(lambda g, s, p: (g, {"n": s["n"] > 0}), lambda p: {"n": jnp.zeros(3)}),
        r"changes n of its state from float64\[3\] to bool\[3\]",
    ),
    "another shape": (
        of(lambda g, s, p: ({n: x.sum() for n, x in g.items()}, s)),
        r"an update of w with shape \[\], but the parameter has \[4, 3\]",
    ),
    "fewer parameters": (of(lambda g, s, p: ({"w": g["w"]}, s)), "other parameters"),
    "an effect": (of(printing), "has an effect"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_optimizers_that_placer_cannot_run_are_errors(case):
    make, message = ERRORS[case]
    with pytest.raises(PlacerError, match=message) as raised:
        describe(make, TYPES, fn="optimizers:make", wide=True)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("averaged", "message"),
    [
        (lambda state, params: {"w": params["w"]}, "returns other parameters"),
        (
            lambda state, params: {**params, "w": params["b"]},
            r"float64\[3\] for w, but the parameter is float64\[4, 3\]",
        ),
        (
            lambda state, params: jax.tree.map(lambda x: x.astype(jnp.float32), params),
            "returns float32",
        ),
    ],
)
def test_values_for_evaluations_have_the_types_of_the_parameters(averaged, message):
    make = lambda: optax.sgd(0.1)  # noqa: E731
    with pytest.raises(PlacerError, match=message):
        describe(make, TYPES, fn="o:make", averaged=averaged, wide=True)


def test_errors_of_the_function_propagate():
    def make():
        raise RuntimeError("no such optimizer")

    with pytest.raises(RuntimeError, match="no such optimizer"):
        describe(make, TYPES, fn="optimizers:make", wide=True)
