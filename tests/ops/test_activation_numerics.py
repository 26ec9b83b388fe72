"""Activations at kinks, at extremes and far below 0, and compared with jax.nn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled_ops as ops
from support.op_gradient import result_and_gradients

from placer.ops.elementwise import activation_jax
from placer.ops.elementwise.activation import ACTIVATIONS, BACKWARD_FLOPS, FORWARD_FLOPS

GRID = jnp.linspace(-9, 9, 400)  # 0 is not on it
JAX = [
    ("leaky_relu", {}, jax.nn.leaky_relu),
    ("elu", {"alpha": 0.7}, lambda x: jax.nn.elu(x, 0.7)),
    ("gelu", {}, lambda x: jax.nn.gelu(x, approximate=False)),
    ("gelu", {"approximate": True}, lambda x: jax.nn.gelu(x, approximate=True)),
    ("silu", {}, jax.nn.silu),
    ("softplus", {}, jax.nn.softplus),
    ("log_softmax", {}, jax.nn.log_softmax),
]


@pytest.mark.parametrize(
    ("kind", "attrs", "reference"), JAX, ids=[f"{case[0]}{case[1]}" for case in JAX]
)
def test_activations_equal_those_of_jax(kind, attrs, reference):
    out, (slope,) = result_and_gradients(kind, GRID, **attrs)
    np.testing.assert_allclose(out, reference(GRID), rtol=1e-5, atol=1e-6)
    expected = jax.grad(lambda x: reference(x).sum())(GRID)
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-4)


FAR_FROM_0 = [
    # far below 0: the result divided by -x (None: it is -1), and the slope
    ("leaky_relu", {}, -0.01, 0.01),
    ("elu", {}, None, 0.0),
    ("gelu", {}, 0.0, 0.0),
    ("gelu", {"approximate": True}, 0.0, 0.0),
    ("silu", {}, 0.0, 0.0),
    ("softplus", {}, 0.0, 0.0),
]


@pytest.mark.parametrize(
    ("dtype", "far"),
    [("float16", 6e4), ("bfloat16", 1e30), ("float32", 1000.0), ("float32", 1e30)],
)
@pytest.mark.parametrize(("kind", "attrs", "share", "below"), FAR_FROM_0, ids=str)
def test_nothing_overflows_far_from_0(kind, attrs, share, below, dtype, far):
    x = jnp.array([far, -far], dtype)
    out, (slope,) = result_and_gradients(kind, x, **attrs)
    assert out.dtype == slope.dtype == x.dtype
    low = -1.0 if share is None else share * far
    np.testing.assert_allclose(out.astype(float), [float(x[0]), low], rtol=1e-2)
    np.testing.assert_allclose(slope.astype(float), [1, below], rtol=1e-2)


@pytest.mark.parametrize("approximate", [False, True])
def test_gelu_is_accurate_far_below_0(approximate):
    x = np.linspace(-9, -4, 50)
    exact = np.float32(x)
    out, (slope,) = result_and_gradients("gelu", exact, approximate=approximate)
    with jax.enable_x64(True):
        wide = jnp.asarray(exact, "float64")
        expected, (expected_slope,) = result_and_gradients(
            "gelu", wide, approximate=approximate
        )
    np.testing.assert_allclose(out, expected, rtol=1e-4)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-3)


def test_the_error_of_the_approximate_gelu_is_as_documented():
    difference = ops.gelu(GRID, approximate=True) - ops.gelu(GRID)
    assert 1e-4 < jnp.max(jnp.abs(difference)) < 5e-4


def test_softplus_is_accurate_far_below_0():
    out, (slope,) = result_and_gradients("softplus", jnp.float32([-30.0]))
    np.testing.assert_allclose(out, np.exp([-30.0]), rtol=1e-5)
    np.testing.assert_allclose(slope, np.exp([-30.0]), rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "attrs", "slope"),
    [
        ("leaky_relu", {}, 0.01),
        ("leaky_relu", {"negative_slope": 0.0}, 0.0),
        ("elu", {"alpha": 0.5}, 0.5),
        ("softplus", {}, 0.5),
        ("gelu", {}, 0.5),
        ("silu", {}, 0.5),
    ],
)
def test_slopes_at_0(kind, attrs, slope):
    _, (actual,) = result_and_gradients(kind, jnp.zeros(1), **attrs)
    np.testing.assert_allclose(actual, [slope], rtol=1e-6)


def test_log_softmax_is_exact_where_softmax_is_0():
    logits = jnp.array([[1000.0, -1000.0, 0.0]])
    out, (slope,) = result_and_gradients(
        "log_softmax", logits, dy=jnp.array([[0.0, 1.0, 0.0]])
    )
    np.testing.assert_array_equal(out, [[0, -2000, -1000]])
    np.testing.assert_array_equal(slope, [[-1, 1, 0]])


def test_every_activation_of_fc_has_a_cost_and_a_function():
    assert set(ACTIVATIONS) == set(FORWARD_FLOPS) == set(BACKWARD_FLOPS)
    assert [*ACTIVATIONS[1:]] == list(activation_jax.ACTIVATIONS)


@pytest.mark.parametrize("name", ACTIVATIONS[1:])
def test_an_activation_of_fc_equals_the_op_of_that_name(name):
    x, w = jnp.array([[0.5, -2.0]]), jnp.array([[1.0, 2.0, -1.0], [0.5, -1.0, 3.0]])
    product = ops.fc(x, w)
    np.testing.assert_array_equal(
        ops.fc(x, w, activation=name), getattr(ops, name)(product)
    )
