"""Gradients compared with those of plain formulas in float64, and at extremes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled_ops
from support.op_cases import BATCH, DIFFERENTIABLE, PLAIN, Use, mostly_slow

from placer import ops


@pytest.mark.parametrize("use", mostly_slow(DIFFERENTIABLE))
def test_value_and_gradient_equal_those_of_a_plain_formula(use: Use):
    use = use.with_dtype("float64")
    arrays = use.arrays(seed=3)
    function, plain = getattr(ops, use.kind), PLAIN[use.kind]
    floats = [i for i, t in enumerate(use.types) if t.is_float]
    rng = np.random.default_rng(5)
    dys = [rng.normal(size=t.sizes(BATCH)) if t.is_float else None for t in use.results]

    @jax.jit
    def mine(*xs):
        out, residuals = function.forward(*xs, **use.keywords())
        saved = [xs[i] for i in use.declaration.saves(use.types, use.all_attrs)]
        cotangents = function.backward(residuals, *saved, *dys)
        return out, function(*xs, **use.keywords()), [cotangents[i] for i in floats]

    @jax.jit
    def reference(*xs):
        def weighted(*xs):
            out = plain(*xs, **use.keywords())
            outs = out if isinstance(out, tuple) else (out,)
            parts = [
                jnp.sum(dy * y)
                for dy, y in zip(dys, outs, strict=True)
                if dy is not None
            ]
            return sum(parts), out

        gradient = jax.grad(weighted, floats, has_aux=True)
        cotangents, out = gradient(*xs)
        return out, cotangents

    with jax.enable_x64(True):
        out, alone, gradients = mine(*arrays)
        value, expected = reference(*arrays)
    several = [x if isinstance(x, tuple) else (x,) for x in (out, alone, value)]
    for y, again, reference_value in zip(*several, strict=True):
        assert y.dtype == reference_value.dtype or not jnp.issubdtype(
            y.dtype, jnp.floating
        )
        np.testing.assert_allclose(y, reference_value, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(again, y, rtol=1e-12, atol=1e-14)
    for cotangents, gradient in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(cotangents, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "use", mostly_slow(use for use in DIFFERENTIABLE if len(use.results) > 1)
)
def test_a_cotangent_of_none_equals_one_of_zeros(use: Use):
    function = getattr(compiled_ops, use.kind)
    arrays = use.arrays()
    out, residuals = function.forward(*arrays, **use.keywords())
    saved = [arrays[i] for i in use.declaration.saves(use.types, use.all_attrs)]
    for index, (kind, y) in enumerate(zip(use.results, out, strict=True)):
        if not kind.is_float:
            continue
        others = [jnp.zeros_like(y) if t.is_float else None
                  for t, y in zip(use.results, out, strict=True)]  # fmt: skip
        others[index] = y
        alone: list[jax.Array | None] = [None] * len(out)
        alone[index] = y
        given = function.backward(residuals, *saved, *alone)
        expected = function.backward(residuals, *saved, *others)
        for mine, reference in zip(given, expected, strict=True):
            assert (mine is None) == (reference is None)
            if mine is not None:
                np.testing.assert_array_equal(mine, reference)


def gradient_of(kind, *inputs, dy=1.0, **attrs):
    """Return the result and the first operand's gradient."""
    function = getattr(compiled_ops, kind)
    out, residuals = function.forward(*inputs, **attrs)
    saved = [inputs[i] for i in residuals.saves]
    return out, function.backward(residuals, *saved, dy)[0]


def test_softmax_cross_entropy_is_exact_at_extreme_logits():
    logits = jnp.array([[1000.0, -1000.0, 0.0]] * 2)
    loss, slope = gradient_of(
        "softmax_cross_entropy", logits, jnp.array([0, 1]), reduce="sum"
    )
    assert loss == 2000.0
    np.testing.assert_array_equal(slope, [[0, 0, 0], [1, -1, 0]])


def test_sigmoid_cross_entropy_is_exact_at_extreme_logits():
    logits = jnp.array([1000.0, 1000.0, -1000.0, -1000.0])
    label = jnp.array([1, 0, 1, 0])
    loss, slope = gradient_of(
        "sigmoid_cross_entropy", logits, label, dy=jnp.ones(4), reduce="none"
    )
    np.testing.assert_array_equal(loss, [0, 1000, 1000, 0])
    np.testing.assert_array_equal(slope, [0, 1, -1, 0])


def test_softmax_and_sigmoid_are_exact_at_extremes():
    extreme = jnp.array([1000.0, -1000.0])
    for kind in ("softmax", "sigmoid"):
        out, slope = gradient_of(kind, extreme, dy=jnp.ones(2))
        np.testing.assert_array_equal(out, [1, 0])
        np.testing.assert_array_equal(slope, [0, 0])


def test_the_gradient_of_div_does_not_overflow_with_the_squared_denominator():
    large = jnp.array([1e30])
    out, residuals = compiled_ops.div.forward(large, large)
    _, db = compiled_ops.div.backward(residuals, large, large, jnp.array([1.0]))
    assert out == 1.0
    np.testing.assert_allclose(db, [-1e-30], rtol=1e-6)


@pytest.mark.parametrize("kind", ["reduce_max", "reduce_min"])
@pytest.mark.parametrize("axis", [1, [1, 2], [0, 2]])
def test_an_extremum_that_is_computed_twice_has_a_gradient(kind, axis):
    """XLA may compute x twice and round it differently for extremum and comparison.

    Without optimizations it does so here: the gradient of jnp.max is NaN.
    """
    x, scale, shift = (
        np.random.default_rng(n).normal(size=shape).astype("float32")
        for n, shape in enumerate([(16, 5, 3), (3,), (3,)])
    )

    @jax.jit
    @partial(jax.grad, argnums=1)
    def slope(scale, shift):
        return jnp.sum(getattr(ops, kind)(x * scale + shift, axis=axis))

    expected = 16 * 5 * 3 / np.prod([x.shape[a] for a in np.atleast_1d(axis)])
    assert np.sum(slope(scale, shift)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("wrong", [-1, 3, 2**31 - 1])
def test_an_id_or_label_out_of_range_gives_nan(wrong):
    ids = jnp.array([1, wrong])
    rows = compiled_ops.embedding(ids, jnp.ones((3, 2)))
    np.testing.assert_array_equal(rows, [[1, 1], [np.nan, np.nan]])
    losses = compiled_ops.softmax_cross_entropy(jnp.zeros((2, 3)), ids, reduce="none")
    np.testing.assert_array_equal(np.isnan(losses), [False, True])


def test_an_id_out_of_range_has_no_gradient():
    table = jnp.ones((3, 2))
    _, residuals = compiled_ops.embedding.forward(jnp.array([-1, 3, 1]), table)
    _, slope = compiled_ops.embedding.backward(
        residuals, jnp.array([-1, 3, 1]), jnp.ones((3, 2))
    )
    np.testing.assert_array_equal(slope, [[0, 0], [1, 1], [0, 0]])
