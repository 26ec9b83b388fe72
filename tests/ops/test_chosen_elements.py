"""Ties, NaN and invalid indices: reduce_max, top_k, argmax, gather and others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled_ops as ops

NAN = np.nan


def gradient(kind, *inputs, dy, **attrs):
    """Return the results, and the gradient of the first operand by the first result."""
    function = getattr(ops, kind)
    out, residuals = function.forward(*inputs, **attrs)
    saved = [inputs[i] for i in residuals.saves]
    rest = (None,) * (len(out) - 1) if isinstance(out, tuple) else ()
    return out, function.backward(residuals, *saved, dy, *rest)[0]


@pytest.mark.parametrize(("kind", "sign"), [("reduce_max", 1.0), ("reduce_min", -1.0)])
def test_equal_extrema_share_the_gradient_as_in_jax(kind, sign):
    x = sign * jnp.array([[2.0, 5.0, 5.0], [1.0, 1.0, 1.0]])
    dy = jnp.array([4.0, 3.0])
    _, slope = gradient(kind, x, axis=1, dy=dy)
    np.testing.assert_array_equal(slope, [[0, 2, 2], [1, 1, 1]])
    reduce = jnp.max if kind == "reduce_max" else jnp.min
    expected = jax.grad(lambda x: (dy * reduce(x, axis=1)).sum())(x)
    np.testing.assert_array_equal(slope, expected)


@pytest.mark.parametrize("kind", ["reduce_max", "reduce_min"])
def test_an_extremum_with_nan_is_nan_and_so_is_its_gradient(kind):
    x = jnp.array([[1.0, NAN], [1.0, 2.0]])
    out, slope = gradient(kind, x, axis=1, dy=jnp.ones(2))
    np.testing.assert_array_equal(np.isnan(out), [True, False])
    np.testing.assert_array_equal(np.isnan(slope), [[True, True], [False, False]])


def test_the_maximum_of_infinities_has_a_gradient():
    out, slope = gradient("reduce_max", jnp.array([-jnp.inf, -jnp.inf]), dy=1.0)
    assert out == -jnp.inf
    np.testing.assert_array_equal(slope, [0.5, 0.5])


def test_top_k_selects_the_first_of_equal_elements():
    x = jnp.array([[1.0, 3.0, 3.0, 3.0]])
    (values, indices), slope = gradient("top_k", x, k=2, dy=jnp.array([[5.0, 7.0]]))
    np.testing.assert_array_equal(values, [[3, 3]])
    np.testing.assert_array_equal(indices, [[1, 2]])
    np.testing.assert_array_equal(slope, [[0, 5, 7, 0]])


def test_top_k_gives_no_gradient_through_the_indices():
    x = jnp.array([[1.0, 4.0, 2.0]])
    _, residuals = ops.top_k.forward(x, k=2)
    (slope,) = ops.top_k.backward(residuals, None, None)
    np.testing.assert_array_equal(slope, [[0, 0, 0]])


@pytest.mark.parametrize("wide", [False, True])
def test_argmax_selects_the_first_of_equal_elements_and_nan_before_numbers(wide):
    with jax.enable_x64(wide):
        x = jnp.array([[1.0, 3.0, 3.0], [1.0, NAN, 9.0], [2.0, 2.0, 5.0]])
        most, least = ops.argmax(x), ops.argmin(x)
    assert most.dtype == least.dtype == jnp.int32
    np.testing.assert_array_equal(most, [1, 1, 2])
    np.testing.assert_array_equal(least, [0, 1, 0])


@pytest.mark.parametrize("wrong", [-1, 3, 2**31 - 1])
def test_an_index_outside_gives_nan_and_no_gradient(wrong):
    x = jnp.array([[1.0, 2.0, 3.0]])
    out, slope = gradient("gather", x, jnp.array([2, wrong]), axis=1, dy=jnp.ones((1, 2)))  # fmt: skip
    np.testing.assert_array_equal(out, [[3, NAN]])
    np.testing.assert_array_equal(slope, [[0, 0, 1]])
    out, slope = gradient("take_along_axis", x, jnp.array([[wrong, 0]]), dy=jnp.ones((1, 2)))  # fmt: skip
    np.testing.assert_array_equal(out, [[NAN, 1]])
    np.testing.assert_array_equal(slope, [[1, 0, 0]])


@pytest.mark.parametrize(
    ("dtype", "fill"), [("int32", -(2**31)), ("uint8", 255), ("bool", True)]
)
def test_an_index_outside_integers_gives_the_documented_value(dtype, fill):
    x = jnp.zeros((2, 2), dtype)
    assert ops.gather(x, jnp.array([-1]))[0, 0] == fill
    assert ops.take_along_axis(x, jnp.array([[5], [0]]))[0, 0] == fill


def test_gradients_of_a_repeated_index_are_added():
    x, dy = jnp.ones(3), jnp.array([1.0, 2.0, 4.0])
    _, slope = gradient("gather", x, jnp.array([1, 1, 0]), dy=dy)
    np.testing.assert_array_equal(slope, [4, 3, 0])
    _, slope = gradient("take_along_axis", x, jnp.array([1, 1, 0]), dy=dy)
    np.testing.assert_array_equal(slope, [4, 3, 0])


def test_one_hot_of_an_invalid_class_is_zeros():
    out = ops.one_hot(jnp.array([1, -1, 3, 2**31 - 1]), classes=3)
    np.testing.assert_array_equal(out, [[0, 1, 0], *[[0, 0, 0]] * 3])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_one_hot_may_have_more_classes_than_the_dtype_of_the_ids(dtype):
    out = ops.one_hot(jnp.array([5], dtype), classes=600)
    np.testing.assert_array_equal(np.flatnonzero(out), [5])


def test_an_exclusive_cumsum_does_not_subtract_its_element():
    x = jnp.float32([1.0, 1e8, 1.0])
    np.testing.assert_array_equal(ops.cumsum(x, exclusive=True), [0, 1, 1e8])
    backwards = ops.cumsum(x, exclusive=True, reverse=True)
    np.testing.assert_array_equal(backwards, [1e8, 1, 0])


def test_squeeze_keeps_a_batch_of_one_row():
    assert ops.squeeze(jnp.zeros((1, 1, 3)), axis=1).shape == (1, 3)
