"""Pooling at ties and edges and with NaN, and its errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled_ops as ops
from support.op_gradient import result_and_gradients
from support.op_use import Use

from placer.errors import OpError


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


IMAGE = ("float32[batch, 8, 6, 4]",)

INVALID_USES = [
    (
        Use("max_pool2d", ("float32[batch, 8, 4]",), {"pool_size": 2}),
        "max_pool2d needs a float operand [batch, height, width, channels] as 'x', not"
        " float32[batch, 8, 4]",
        (0, None),
    ),
    (
        Use("avg_pool1d", ("int32[batch, 8, 4]",), {"pool_size": 2}),
        "avg_pool1d needs a float operand [batch, length, channels] as 'x', not"
        " int32[batch, 8, 4]",
        (0, None),
    ),
    (
        Use("max_pool2d", IMAGE, {"pool_size": 7}),
        "max_pool2d has a window of 7 where 'x' has 6 elements",
        (0, None),
    ),
    (
        Use("max_pool2d", IMAGE, {"pool_size": [2, 0]}),
        "max_pool2d needs pool_size an int or a list of 2 ints of at least 1, not [2, 0]",
        (None, "pool_size"),
    ),
    (
        Use("avg_pool2d", IMAGE, {"pool_size": 2, "strides": -1}),
        "avg_pool2d needs strides an int or a list of 2 ints of at least 1, not -1",
        (None, "strides"),
    ),
    (
        Use("avg_pool2d", IMAGE, {"pool_size": 2, "padding": 2}),
        "avg_pool2d needs a padding smaller than its window of 2, not 2",
        (None, "padding"),
    ),
    (
        Use("adaptive_avg_pool2d", IMAGE, {"output_size": [1, 2, 3]}),
        "adaptive_avg_pool2d needs output_size an int or a list of 2 ints of at least"
        " 1, not [1, 2, 3]",
        (None, "output_size"),
    ),
    (Use("max_pool1d", (), {"pool_size": 2}), "max_pool1d needs 1 operand (x), 0 given",
     (None, None)),
]  # fmt: skip


@pytest.mark.parametrize(("use", "message", "at"), INVALID_USES, ids=str)
def test_invalid_uses(use, message, at):
    with pytest.raises(OpError) as caught:
        use.declaration.infer(use.types, use.all_attrs)
    assert caught.value.message == message
    assert (caught.value.operand, caught.value.attr) == at
