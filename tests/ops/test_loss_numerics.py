"""Losses compared with those of optax, at extremes and at kinks."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import compiled_ops as ops
from support.marks import slow_but
from support.op_gradient import result_and_gradients

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(6, 4)).astype(np.float32)
LABEL = RNG.integers(0, 4, 6).astype(np.int32)
OTHER = RNG.normal(size=(6, 4)).astype(np.float32)
PROBABILITIES = np.asarray(jax.nn.softmax(OTHER))
EXTREME = jnp.array([[1000.0, -1000.0, 0.0, 0.0]])

OPTAX = [
    (
        "softmax_cross_entropy",
        {"label_smoothing": 0.1},
        LABEL,
        lambda x, y: optax.softmax_cross_entropy(
            x, optax.smooth_labels(jax.nn.one_hot(y, 4), 0.1)
        ),
    ),
    ("huber", {"delta": 0.3}, OTHER, lambda x, y: optax.huber_loss(x, y, delta=0.3)),
    ("l1_loss", {}, OTHER, lambda x, y: jnp.abs(x - y)),
    ("kl_div", {}, PROBABILITIES, optax.kl_divergence),
    (
        "hinge",
        {},
        (LABEL[:, None] == np.arange(4)).astype(np.int32),
        lambda x, y: optax.hinge_loss(x, 2.0 * y - 1),
    ),
]


@pytest.mark.parametrize(
    ("kind", "attrs", "target", "reference"), OPTAX, ids=[case[0] for case in OPTAX]
)
def test_losses_equal_those_of_optax(kind, attrs, target, reference):
    out, gradients = result_and_gradients(kind, LOGITS, target, **attrs)
    value, expected = jax.value_and_grad(lambda x: reference(x, target).mean())(LOGITS)
    np.testing.assert_allclose(out, value, rtol=1e-6)
    np.testing.assert_allclose(gradients[0], expected, rtol=1e-5, atol=1e-7)


def test_cosine_similarity_equals_that_of_optax():
    out, (da, db) = result_and_gradients("cosine_similarity", LOGITS, OTHER)

    def reference(a, b):
        return optax.cosine_similarity(a, b).sum()

    np.testing.assert_allclose(
        out, optax.cosine_similarity(LOGITS, OTHER), rtol=1e-5, atol=1e-6
    )
    expected = jax.grad(reference, (0, 1))(LOGITS, OTHER)
    np.testing.assert_allclose(da, expected[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(db, expected[1], rtol=1e-4, atol=1e-6)


def test_a_mean_with_class_weights_divides_by_the_rows():
    logits, label = jnp.zeros((4, 2)), jnp.array([0, 0, 0, 1])
    loss = ops.softmax_cross_entropy(logits, label, class_weights=[1.0, 5.0])
    np.testing.assert_allclose(loss, np.log(2) * (1 + 1 + 1 + 5) / 4, rtol=1e-6)


def test_class_weights_of_1_equal_no_class_weights():
    weighted = result_and_gradients(
        "softmax_cross_entropy", LOGITS, LABEL, class_weights=[1.0] * 4
    )
    plain = result_and_gradients("softmax_cross_entropy", LOGITS, LABEL)
    np.testing.assert_allclose(weighted[0], plain[0], rtol=1e-6)
    np.testing.assert_allclose(weighted[1][0], plain[1][0], rtol=1e-6, atol=1e-8)


def test_rows_are_weighted_by_a_product_before_the_mean():
    rows = ops.softmax_cross_entropy(LOGITS, LABEL, reduce="none")
    weights = jnp.arange(6.0)
    loss = ops.reduce_mean(ops.mul(rows, weights), count=6)
    np.testing.assert_allclose(loss, (np.asarray(rows) * weights).sum() / 6, rtol=1e-6)


def test_a_smoothed_and_weighted_loss_does_not_overflow():
    loss, (slope, _) = result_and_gradients(
        "softmax_cross_entropy",
        EXTREME,
        jnp.array([1]),
        label_smoothing=0.2,
        class_weights=[0.0, 2.0, 1.0, 1.0],
    )
    # q is 1.7 for the label and 0.05 for two others; their logits are below the largest
    # by 2000, 1000 and 1000
    np.testing.assert_allclose(loss, 1.7 * 2000 + 2 * 0.05 * 1000, rtol=1e-6)
    np.testing.assert_allclose(slope, [[1.8, -1.7, -0.05, -0.05]], rtol=1e-6)


def test_a_weighted_sigmoid_loss_is_exact_at_extreme_logits():
    logits = jnp.array([1000.0, 1000.0, -1000.0, -1000.0, -20.0])
    loss, (slope, none) = result_and_gradients(
        "sigmoid_cross_entropy",
        logits,
        jnp.array([1, 0, 1, 0, 0]),
        positive_weight=3.0,
        reduce="none",
    )
    assert none is None
    small = np.exp(-20.0)
    np.testing.assert_allclose(loss, [0, 1000, 3000, 0, small], rtol=1e-5)
    np.testing.assert_allclose(slope, [0, 1, -3, 0, small], rtol=1e-5)


def test_hinge_accepts_labels_of_0_or_minus_1_and_1():
    score = jnp.array([2.0, 0.5, 0.5, -3.0])
    expected = ops.hinge(score, jnp.array([1, -1, 1, -1]), reduce="none")
    np.testing.assert_array_equal(expected, [0, 1.5, 0.5, 0])
    np.testing.assert_array_equal(
        ops.hinge(score, jnp.array([1, 0, 1, 0], jnp.uint8), reduce="none"), expected
    )


def test_the_derivative_on_the_margin_or_without_a_difference_is_0():
    one = jnp.ones(2)
    _, (slope, _) = result_and_gradients("hinge", one, jnp.array([1, 0]), reduce="sum")
    np.testing.assert_array_equal(slope, [0, 1])
    _, slopes = result_and_gradients("l1_loss", one, one)
    np.testing.assert_array_equal(slopes, np.zeros((2, 2)))


def test_huber_is_linear_where_a_square_would_overflow():
    loss, (slope, other) = result_and_gradients(
        "huber", jnp.array([1e30]), jnp.zeros(1), delta=2.0
    )
    np.testing.assert_allclose(loss, 2e30, rtol=1e-6)
    assert (slope[0], other[0]) == (2, -2)


def test_a_target_of_0_contributes_0_to_kl_div():
    prediction = jnp.array([[-np.inf, np.log(0.5), np.log(0.5)]], jnp.float32)
    target = jnp.array([[0.0, 0.5, 0.5]])
    loss, (slope, target_slope) = result_and_gradients("kl_div", prediction, target)
    np.testing.assert_allclose(loss, 0, atol=1e-7)
    np.testing.assert_array_equal(slope, [[0, -0.5, -0.5]])
    np.testing.assert_allclose(target_slope[0, 1:], [1, 1], rtol=1e-6)
    finite = jnp.array([[-1.0, -1.0, -1.0]])
    _, (_, target_slope) = result_and_gradients("kl_div", finite, target)
    assert target_slope[0, 0] == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_cosine_similarity_of_zeros_is_0_with_a_finite_gradient(dtype):
    a, b = jnp.zeros((1, 3), dtype), jnp.array([[3.0, 0.0, 4.0]], dtype)
    out, (da, db) = result_and_gradients("cosine_similarity", a, b, epsilon=1e-3)
    assert out.dtype == da.dtype == db.dtype == a.dtype
    assert out[0] == 0
    np.testing.assert_allclose(da.astype(float), [[600, 0, 800]], rtol=1e-2)
    np.testing.assert_array_equal(db, np.zeros((1, 3)))


def test_cosine_similarity_of_zeros_in_float16_is_0_by_default():
    zeros = jnp.zeros((1, 3), "float16")
    assert ops.cosine_similarity(zeros, zeros)[0] == 0


@pytest.mark.parametrize(
    ("dtype", "classes"),
    slow_but(
        [("int8", 300), ("uint8", 300), ("int16", 70_000), ("uint16", 70_000)],
        product(["int8", "uint8", "int16", "uint16"], [4, 300, 70_000]),
    ),
)
def test_there_may_be_more_classes_than_the_dtype_of_the_label(dtype, classes):
    logits = RNG.normal(size=(3, classes)).astype(np.float32)
    label = np.array([0, 1, 3])
    attrs = {"class_weights": (2.0,) * classes, "label_smoothing": 0.1}
    for given in ({}, attrs):
        kind = "softmax_cross_entropy"
        out, gradients = result_and_gradients(
            kind, logits, label.astype(dtype), **given
        )
        expected, wide_gradients = result_and_gradients(
            kind, logits, label.astype("int32"), **given
        )
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(gradients[0], wide_gradients[0])


def test_one_hot_of_a_narrow_dtype_has_a_single_1():
    found = ops.one_hot(np.array([44, 255], np.uint8), classes=300)
    np.testing.assert_array_equal(np.argmax(found, -1), [44, 255])
    np.testing.assert_array_equal(np.sum(found, -1), [1, 1])
