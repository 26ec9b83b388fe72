"""Normalization far from 0, of constant values and of half floats; its errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled_ops as ops
from support.op_gradient import result_and_gradients

RNG = np.random.default_rng(0)
KINDS = [("layer_norm", {}), ("group_norm", {"groups": 2})]


@pytest.mark.parametrize(("kind", "attrs"), KINDS)
def test_constant_values_become_the_bias(kind, attrs):
    x, scale, bias = jnp.full((2, 8), 3.0), jnp.ones(8), jnp.arange(8.0)
    out, gradients = result_and_gradients(kind, x, scale, bias, **attrs)
    np.testing.assert_array_equal(out, [bias, bias])
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize(("kind", "attrs"), KINDS)
def test_the_variance_does_not_cancel_far_from_0(kind, attrs):
    x = jnp.asarray(RNG.integers(-8, 8, (4, 64)), jnp.float32)
    near = getattr(ops, kind)(x, **attrs)
    far = getattr(ops, kind)(x + 2.0**16, **attrs)
    np.testing.assert_allclose(far, near, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["layer_norm", "group_norm", "rms_norm"])
def test_half_floats_are_normalized_in_float32(kind):
    x = jnp.asarray(RNG.normal(300.0, 1.0, (4, 64)), jnp.bfloat16)
    scale = jnp.asarray(RNG.normal(size=64), jnp.bfloat16)
    mine, gradients = result_and_gradients(kind, x, scale)
    wide, expected = result_and_gradients(
        kind, x.astype(jnp.float32), scale.astype(jnp.float32)
    )
    for half, full in zip((mine, *gradients), (wide, *expected), strict=True):
        assert half.dtype == jnp.bfloat16
        np.testing.assert_array_equal(half, full.astype(jnp.bfloat16))


def test_a_row_of_zeros_is_divided_by_the_root_of_epsilon():
    out, (dx, d_scale) = result_and_gradients(
        "rms_norm", jnp.zeros((1, 4)), jnp.ones(4), epsilon=0.25
    )
    np.testing.assert_array_equal(out, np.zeros((1, 4)))
    np.testing.assert_array_equal(dx, np.full((1, 4), 2.0))
    np.testing.assert_array_equal(d_scale, np.zeros(4))


def test_groups_do_not_mix():
    x = jnp.asarray(RNG.normal(size=(2, 3, 6)), jnp.float32)
    other = x.at[:, :, 3:].multiply(5.0)
    mine, others = (ops.group_norm(a, groups=2) for a in (x, other))
    np.testing.assert_array_equal(mine[:, :, :3], others[:, :, :3])
    np.testing.assert_allclose(mine, others, rtol=1e-3, atol=1e-3)


def test_group_norm_with_one_group_equals_layer_norm():
    x = jnp.asarray(RNG.normal(size=(4, 3, 6)), jnp.float32)
    np.testing.assert_allclose(
        ops.group_norm(x, groups=1), ops.layer_norm(x, axis=1), rtol=1e-5, atol=1e-6
    )


def test_the_backward_needs_x_scale_and_two_numbers_per_row():
    x, scale, bias = (jax.ShapeDtypeStruct(s, "float32") for s in ((4, 6), (6,), (6,)))
    _, residuals = jax.eval_shape(ops.layer_norm.forward, x, scale, bias)
    assert residuals.saves == (0, 1)
    assert [kept.shape for kept in residuals.extra] == [(4,), (4,)]
