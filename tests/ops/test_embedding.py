"""embedding with combiners, weights and padding: empty lists, NaN, and errors."""

import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled_ops as ops
from support.op_cases import Use
from support.op_gradient import result_and_gradients

TABLE = np.arange(1.0, 7.0, dtype="float32").reshape(3, 2)
NAN = np.nan


def lists(*rows):
    return jnp.array(rows, jnp.int32)


@pytest.mark.parametrize(
    ("combiner", "divisor"), [("sum", 1.0), ("mean", 0.5), ("sqrtn", 2.5)]
)
def test_a_combiner_divides_the_weighted_sum(combiner, divisor):
    """The sum of the weights is 0.5, that of their squares 6.25."""
    ids, weights = lists([2, 0, 1]), jnp.array([[2.0, -1.5, 7.0]])
    out, (_, slope, slopes) = result_and_gradients(
        "embedding", ids, weights, TABLE, combiner=combiner, padding=1
    )
    total = 2 * TABLE[2] - 1.5 * TABLE[0]
    np.testing.assert_allclose(out, [total / divisor], rtol=1e-6)
    np.testing.assert_allclose(slopes[:, 0], np.array([-1.5, 0, 2]) / divisor)
    np.testing.assert_array_equal(slope, [[0, 0, 0]])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("padding", [0, -1])
def test_a_list_of_only_padding_is_0_and_has_no_gradient(combiner, padding):
    """Nothing of the padding is used: here its row and its weights are NaN."""
    ids = lists([padding, padding], [1, padding])
    table = np.array([[NAN, NAN], [3, 4], [5, 6]], "float32")
    weights = np.array([[NAN, NAN], [1, NAN]], "float32")
    for operands in ((ids, table), (ids, weights, table)):
        out, gradients = result_and_gradients(
            "embedding", *operands, combiner=combiner, padding=padding
        )
        np.testing.assert_array_equal(out, [[0, 0], [3, 4]])
        np.testing.assert_array_equal(gradients[-1], [[0, 0], [1, 1], [0, 0]])


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_a_divisor_of_0_gives_0(combiner):
    ids, weights = lists([0, 1]), jnp.array([[0.0, 0.0]])
    out, (*_, slopes) = result_and_gradients(
        "embedding", ids, weights, TABLE, combiner=combiner
    )
    np.testing.assert_array_equal(out, [[0, 0]])
    np.testing.assert_array_equal(slopes, np.zeros_like(TABLE))
    opposite = ops.embedding(ids, jnp.array([[1.0, -1.0]]), TABLE, combiner="mean")
    np.testing.assert_array_equal(opposite, [[0, 0]])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_lists_without_elements_give_0(combiner):
    out = ops.embedding(jnp.zeros((2, 0), jnp.int32), TABLE, combiner=combiner)
    np.testing.assert_array_equal(out, np.zeros((2, 2)))


@pytest.mark.parametrize("padding", [0, -1, 3])
def test_without_a_combiner_padding_gives_rows_of_0(padding):
    out, (_, slopes) = result_and_gradients(
        "embedding", lists(1, padding, 1), TABLE, padding=padding
    )
    np.testing.assert_array_equal(out, [[3, 4], [0, 0], [3, 4]])
    np.testing.assert_array_equal(slopes, [[0, 0], [2, 2], [0, 0]])


def test_other_ids_outside_of_the_table_give_nan_in_their_list():
    ids = lists([1, -2], [1, 3], [1, -1])
    out, (_, slopes) = result_and_gradients(
        "embedding", ids, TABLE, combiner="sum", padding=-1
    )
    np.testing.assert_array_equal(out, [[NAN, NAN], [NAN, NAN], [3, 4]])
    np.testing.assert_array_equal(slopes, [[0, 0], [3, 3], [0, 0]])


def test_a_sum_of_half_floats_with_wide_weights_is_rounded_once():
    table = jnp.array([[1.0], [2.0**-9]], "bfloat16")
    ids, weights = lists([0, *[1] * 16]), jnp.ones((1, 17), "float32")
    for operands in ((ids, table), (ids, weights, table)):
        out = ops.embedding(*operands, combiner="sum")
        assert out.dtype == jnp.bfloat16
        assert float(out[0, 0]) == 1 + 2.0**-5


def test_ids_of_int64_can_have_a_padding_above_int32():
    use = Use("embedding", ("int64[batch]", "float32[3, 2]"), {"padding": 2**31})
    assert [str(each) for each in use.results] == ["float32[batch, 2]"]
