"""Elementwise ops and reductions at 0, ties, bounds and the limits of a dtype."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled_ops as ops
from support.op_cases import Use
from support.op_gradient import result_and_gradients


@pytest.mark.parametrize(
    ("exponent", "x", "power", "slope"),
    [
        (0.0, 0.0, 1, 0),
        (0.0, np.inf, 1, 0),
        (1.0, 0.0, 0, 1),
        (2.0, 0.0, 0, 0),
        (0.5, 0.0, 0, np.inf),
        (-1.0, 0.0, np.inf, -np.inf),
        (3.0, -2.0, -8, 12),
        (2.0, -2.0, 4, -4),
        (-2.0, -2.0, 0.25, 0.25),
        (0.5, -2.0, np.nan, np.nan),
        (1e15, 1.0, 1, 1e15),
    ],
)
def test_powers_of_0_and_of_negative_values(exponent, x, power, slope):
    out, (actual,) = result_and_gradients("pow", jnp.float32([x]), exponent=exponent)
    np.testing.assert_array_equal(out, np.float32([power]))
    np.testing.assert_array_equal(actual, np.float32([slope]))


@pytest.mark.parametrize("kind", ["maximum", "minimum"])
def test_a_tie_shares_the_gradient_as_in_jax(kind):
    a, b = jnp.array([1.0, 2.0, 3.0]), jnp.array([2.0, 2.0, 2.0])
    out, slopes = result_and_gradients(kind, a, b)
    reference = getattr(jnp, kind)
    np.testing.assert_array_equal(out, reference(a, b))
    expected = jax.grad(lambda a, b: reference(a, b).sum(), (0, 1))(a, b)
    np.testing.assert_array_equal(slopes[0], expected[0])
    np.testing.assert_array_equal(slopes[1], expected[1])
    assert slopes[0][1] == 0.5


@pytest.mark.parametrize("kind", ["maximum", "minimum", "clip"])
def test_nan_propagates(kind):
    x = jnp.array([np.nan])
    out = ops.clip(x, min=0.0) if kind == "clip" else getattr(ops, kind)(x, x * 0 + 1)
    assert jnp.isnan(out[0])


@pytest.mark.parametrize(
    ("bounds", "out", "slope"),
    [
        ({"min": -1, "max": 1}, [-1, -1, 0, 1, 1], [0, 1, 1, 1, 0]),
        ({"min": 0.0}, [0, 0, 0, 1, 2], [0, 0, 1, 1, 1]),
        ({"max": 0.0}, [-2, -1, 0, 0, 0], [1, 1, 1, 0, 0]),
        ({"min": 1.0, "max": 1.0}, [1] * 5, [0, 0, 0, 1, 0]),
    ],
)
def test_clip_passes_the_gradient_on_its_bounds(bounds, out, slope):
    actual, (slopes,) = result_and_gradients(
        "clip", jnp.array([-2.0, -1.0, 0.0, 1.0, 2.0]), **bounds
    )
    np.testing.assert_array_equal(actual, out)
    np.testing.assert_array_equal(slopes, slope)


def test_an_integer_condition_is_true_unless_it_is_0():
    out = ops.where(jnp.array([-3, 0, 7]), jnp.ones(3), jnp.zeros(3))
    np.testing.assert_array_equal(out, [1, 0, 1])


def test_elements_that_where_does_not_select_get_no_gradient():
    condition = jnp.array([True, False])
    a, b = jnp.array([1.0, np.nan]), jnp.array([np.inf, 2.0])
    out, (none, da, db) = result_and_gradients(
        "where", condition, a, b, dy=jnp.array([5.0, 6.0])
    )
    assert none is None
    np.testing.assert_array_equal(out, [1, 2])
    np.testing.assert_array_equal(da, [5, 0])
    np.testing.assert_array_equal(db, [0, 6])


def test_comparisons_with_nan_are_false():
    nan, one = jnp.array([np.nan]), jnp.ones(1)
    for kind in ("greater", "less", "equal"):
        function = getattr(ops, kind)
        assert not function(nan, one)[0]
        assert not function(nan, nan)[0]
    assert ops.equal(one, one)[0]
    assert not ops.greater(one, one)[0]
    assert not ops.less(one, one)[0]


def test_the_gradient_of_cast_has_the_dtype_of_its_operand():
    x = jnp.array([1.0, 2.0], jnp.float32)
    out, (dx,) = result_and_gradients("cast", x, dtype="bfloat16")
    assert (out.dtype, dx.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_array_equal(dx, [1, 1])


def test_cast_rounds_floats_towards_0_and_nonzero_is_true():
    x = jnp.array([-1.7, 0.0, 1.7])
    np.testing.assert_array_equal(ops.cast(x, dtype="int32"), [-1, 0, 1])
    np.testing.assert_array_equal(ops.cast(x, dtype="bool"), [True, False, True])


def test_cast_to_float64_requires_precision_float64():
    with pytest.raises(ValueError, match="precision: float64"):
        ops.cast(jnp.ones(2), dtype="float64")
    with jax.enable_x64(True):
        assert ops.cast(jnp.ones(2, "float32"), dtype="float64").dtype == "float64"


LINEAR = [
    ("negative", {}, "float32", True),
    ("pow", {"exponent": 1.0}, "float32", True),
    ("pow", {"exponent": 0.0}, "float32", False),
    ("pow", {"exponent": 2.0}, "float32", False),
    ("cast", {"dtype": "float32"}, "bfloat16", True),
    ("cast", {"dtype": "bfloat16"}, "float32", False),
    ("cast", {"dtype": "bfloat16"}, "float16", False),
    ("cast", {"dtype": "float32"}, "int32", False),
    ("abs", {}, "float32", False),
    ("square", {}, "float32", False),
    ("exp", {}, "float32", False),
    ("log", {}, "float32", False),
    ("clip", {"min": 0.0}, "float32", False),
]


@pytest.mark.parametrize(("kind", "attrs", "dtype", "linear"), LINEAR, ids=str)
def test_an_op_is_declared_linear_exactly_if_it_is(kind, attrs, dtype, linear):
    use = Use(kind, (f"{dtype}[4]",), attrs)
    groups = use.declaration.linear(use.types, use.all_attrs)
    assert groups == (((0,),) if linear else ())


@pytest.mark.parametrize("kind", ["maximum", "minimum", "greater"])
def test_maximum_and_comparisons_are_not_linear(kind):
    use = Use(kind, ("float32[4]", "float32[4]"))
    assert use.declaration.linear(use.types, use.all_attrs) == ()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_mean_of_half_floats_does_not_overflow_like_their_sum(dtype):
    ones = jnp.ones((8, 10_000), dtype)
    for count in (None, 8):
        mean = ops.reduce_mean(ones, count=count)
        loss = ops.mean_squared_error(ones, 0 * ones, count=count)
        assert (mean.dtype, loss.dtype) == (dtype, dtype)
        assert (float(mean), float(loss)) == (1, 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_more_ties_than_a_half_float_can_count_share_the_gradient(dtype):
    ties = jnp.ones(70_000, dtype)
    out, (dx,) = result_and_gradients("reduce_max", ties)
    assert (float(out), dx.dtype) == (1, dtype)
    assert float(jnp.sum(dx.astype(jnp.float32))) == pytest.approx(1, rel=0.01)
