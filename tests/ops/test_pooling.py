"""Pooling at ties and edges and with NaN, and its errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled_ops as ops
from support.op_gradient import result_and_gradients
from support.op_use import Use


def image(rows) -> jnp.ndarray:
    """Return a batch of one image with one channel."""
    return jnp.asarray(rows, jnp.float32)[None, :, :, None]


def plane(y) -> np.ndarray:
    return np.asarray(y)[0, :, :, 0]


def test_of_equal_elements_the_first_gets_the_gradient():
    x = image([[1, 2, 2], [2, 0, 2], [0, 0, 0]])
    out, (dx,) = result_and_gradients("max_pool2d", x, pool_size=3)
    np.testing.assert_array_equal(plane(out), [[2]])
    np.testing.assert_array_equal(plane(dx), [[0, 1, 0], [0, 0, 0], [0, 0, 0]])
    _, (dx,) = result_and_gradients("adaptive_max_pool2d", x, output_size=1)
    np.testing.assert_array_equal(plane(dx), [[0, 1, 0], [0, 0, 0], [0, 0, 0]])


def test_gradients_of_windows_with_the_same_maximum_are_added():
    x = image([[0, 0, 0], [0, 5, 0], [0, 0, 0]])
    dy = image([[1, 2], [3, 4]])
    _, (dx,) = result_and_gradients("max_pool2d", x, dy=dy, pool_size=2, strides=1)
    np.testing.assert_array_equal(plane(dx), [[0, 0, 0], [0, 10, 0], [0, 0, 0]])


def test_elements_outside_of_all_windows_have_no_gradient():
    x = image(np.arange(25).reshape(5, 5))
    for kind in ("max_pool2d", "avg_pool2d"):
        _, (dx,) = result_and_gradients(kind, x, pool_size=1, strides=[2, 3])
        expected = np.zeros((5, 5))
        expected[::2, ::3] = 1
        np.testing.assert_array_equal(plane(dx), expected)


def test_padding_is_never_the_largest():
    x = image(-np.arange(1.0, 10.0).reshape(3, 3))
    out, (dx,) = result_and_gradients("max_pool2d", x, pool_size=2, padding="same")
    np.testing.assert_array_equal(plane(out), [[-1, -3], [-7, -9]])
    assert dx.sum() == 4


def test_padding_does_not_count_in_a_mean():
    x = image([[1, 2, 3]] * 3)
    out, (dx,) = result_and_gradients("avg_pool2d", x, pool_size=2, padding="same")
    np.testing.assert_array_equal(plane(out), [[1.5, 3], [1.5, 3]])
    np.testing.assert_array_equal(
        plane(dx), [[0.25, 0.25, 0.5], [0.25, 0.25, 0.5], [0.5, 0.5, 1]]
    )


def test_the_maximum_of_a_window_with_nan_is_nan():
    x = image([[np.inf, 1], [np.nan, 2]])
    out, (dx,) = result_and_gradients("max_pool2d", x, pool_size=2)
    np.testing.assert_array_equal(plane(out), [[np.nan]])
    np.testing.assert_array_equal(plane(dx), [[0, 0], [1, 0]])


def test_the_maximum_of_minus_infinity_is_minus_infinity():
    x = image(np.full((2, 2), -np.inf))
    np.testing.assert_array_equal(plane(ops.max_pool2d(x, pool_size=2)), [[-np.inf]])


def test_adaptive_windows_equal_those_of_pytorch():
    x = jnp.arange(10.0).reshape(1, 10, 1, 1)
    largest = ops.adaptive_max_pool2d(x, output_size=[4, 1])
    np.testing.assert_array_equal(largest.ravel(), [2, 4, 7, 9])
    mean, (dx,) = result_and_gradients("adaptive_avg_pool2d", x, output_size=[4, 1])
    np.testing.assert_array_equal(mean.ravel(), [1, 3, 6, 8])
    third = 1 / 3
    np.testing.assert_allclose(
        dx.ravel(), [third, third, 2 * third, third, third, *[third] * 2, 2 * third,
                     third, third], rtol=1e-6
    )  # fmt: skip


def test_a_mean_of_half_floats_is_summed_in_float32():
    x = jnp.ones((1, 64, 64, 1), jnp.bfloat16)
    for out in (
        ops.avg_pool2d(x, pool_size=64),
        ops.adaptive_avg_pool2d(x, output_size=1),
    ):
        assert out.dtype == jnp.bfloat16
        assert out.ravel() == 1


@pytest.mark.parametrize(("size", "dtype"), [(16, "uint8"), (17, "uint16")])
def test_the_index_of_a_tap_has_the_smallest_dtype(size, dtype):
    use = Use("max_pool2d", ("float32[batch, 34, 34, 2]",), {"pool_size": size})
    (index,) = use.declaration.residuals(use.types, use.all_attrs)
    assert str(index) == f"{dtype}[batch, 2, 2, 2]"
