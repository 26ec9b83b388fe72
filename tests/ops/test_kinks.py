"""Gradients at kinks: as the doc of each op says, and equal to those of JAX where it says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.op_gradient import result_and_gradients

from placer import ops
from placer.ops.registry import DECLARATIONS

INF = float("inf")
ZERO = ([0.0],)
TIE = ([2.0], [2.0])
KINKS = [
    # the op, its attributes and operands; what its doc says; the gradient of the first
    # operand, and the same function in JAX with its gradient
    ("abs", {}, ZERO, "is 0, as in PyTorch; JAX uses 1", [0], jnp.abs, [1]),
    ("relu", {}, ZERO, "at 0 is 0, as in JAX", [0], jax.nn.relu, [0]),
    (
        "leaky_relu",
        {"negative_slope": 0.25},
        ZERO,
        "is `negative_slope`, as in PyTorch; JAX uses 1",
        [0.25],
        lambda x: jax.nn.leaky_relu(x, 0.25),
        [1],
    ),
    (
        "elu",
        {"alpha": 0.5},
        ZERO,
        "is alpha, as in JAX",
        [0.5],
        lambda x: jax.nn.elu(x, 0.5),
        [0.5],
    ),
    ("sqrt", {}, ZERO, "is inf, as in JAX", [INF], jnp.sqrt, [INF]),
    (
        "pow",
        {"exponent": 0.5},
        ZERO,
        "exponents below 1, the derivative at 0 is infinite",
        [INF],
        lambda x: x**0.5,
        [INF],
    ),
    ("maximum", {}, TIE, "half of the gradient, as in JAX", [0.5], jnp.maximum, [0.5]),
    ("minimum", {}, TIE, "half of the gradient, as in JAX", [0.5], jnp.minimum, [0.5]),
    (
        "clip",
        {"min": 0.0, "max": 1.0},
        ([0.0, 1.0],),
        "on them, as in PyTorch and TensorFlow; JAX halves it",
        [1, 1],
        lambda x: jnp.clip(x, 0.0, 1.0),
        [0.5, 0.5],
    ),
    *(
        (
            kind,
            {},
            ([1.0, 1.0],),
            "share the gradient evenly, as in JAX",
            [0.5, 0.5],
            reference,
            [0.5, 0.5],
        )
        for kind, reference in (("reduce_max", jnp.max), ("reduce_min", jnp.min))
    ),
    (
        "l1_loss",
        {"reduce": "none"},
        TIE,
        "at 0 is 0, as in PyTorch; JAX uses 1",
        [0],
        lambda a, b: jnp.abs(a - b),
        [1],
    ),
]


@pytest.mark.parametrize(
    ("kind", "attrs", "operands", "says", "slope", "reference", "slope_in_jax"),
    KINKS,
    ids=[case[0] for case in KINKS],
)
def test_the_gradient_is_as_documented(
    kind, attrs, operands, says, slope, reference, slope_in_jax
):
    assert says in DECLARATIONS[kind].doc
    arrays = [jnp.array(operand) for operand in operands]
    _, (actual, *_) = result_and_gradients(kind, *arrays, **attrs)
    np.testing.assert_array_equal(actual, np.float32(slope))
    expected = jax.grad(lambda *arrays: reference(*arrays).sum())(*arrays)
    np.testing.assert_array_equal(expected, np.float32(slope_in_jax))


def test_top_k_gives_the_gradient_to_the_selected_ones_of_equal_elements():
    assert (
        "gradient, which goes to the selected elements, as in JAX"
        in DECLARATIONS["top_k"].doc
    )
    x, dy = jnp.ones(3), (jnp.ones(2), jnp.zeros(2))
    _, residuals = ops.top_k.forward(x, k=2)
    saved = [x for _ in residuals.saves]
    (slope,) = ops.top_k.backward(residuals, *saved, *dy)
    expected = jax.grad(lambda x: jax.lax.top_k(x, 2)[0].sum())(x)
    np.testing.assert_array_equal(slope, expected)
    np.testing.assert_array_equal(slope, [1, 1, 0])
