"""Each gradient is that of a plain formula, in float64, and finite at extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from op_cases import BATCH, DIFFERENTIABLE, Use

from placer import ops


def plain_fc(x, w, b=0.0, activation="none", transpose_w=False):
    y = jnp.einsum("...i,io->...o", x, w.T if transpose_w else w) + b
    match activation:
        case "relu":
            return jnp.where(y > 0, y, 0.0)
        case "tanh":
            return (jnp.exp(y) - jnp.exp(-y)) / (jnp.exp(y) + jnp.exp(-y))
        case "sigmoid":
            return 1 / (1 + jnp.exp(-y))
        case "softmax":
            return plain_softmax(y)
    return y


def plain_matmul(a, b, transpose_a=False, transpose_b=False):
    left = "...km" if transpose_a else "...mk"
    right = "...nk" if transpose_b else "...kn"
    return jnp.einsum(f"{left},{right}->...mn", a, b)


def plain_softmax(x, axis=-1):
    return jnp.exp(x) / jnp.exp(x).sum(axis, keepdims=True)


def plain_reshape(x, shape):
    if list(shape) == ["batch", 1, -1]:
        return x[:, None, :]
    sizes = [-1 if d == "batch" and -1 not in shape else d for d in shape]
    return x.reshape([x.shape[0] if d == "batch" else d for d in sizes])


def plain_sum(x, axis=None, keepdims=False):
    return jnp.sum(x, None if axis is None else tuple(np.atleast_1d(axis).astype(int)),
                   keepdims=keepdims)  # fmt: skip


def plain_mean(x, axis=None, keepdims=False, count=None):
    total = plain_sum(x, axis, keepdims)
    return total * (max(1, total.size) / x.size)


def reduced(losses, reduce="mean", count=None):
    return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduce]()


def plain_softmax_cross_entropy(logits, label, **how):
    onehot = jnp.eye(logits.shape[-1])[label]
    return reduced(-(onehot * jnp.log(plain_softmax(logits))).sum(-1), **how)


def plain_sigmoid_cross_entropy(logits, label, **how):
    p = 1 / (1 + jnp.exp(-logits))
    return reduced(-(label * jnp.log(p) + (1 - label) * jnp.log(1 - p)), **how)


PLAIN = {
    "fc": plain_fc,
    "matmul": plain_matmul,
    "embedding": lambda ids, table: table[ids],
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "scale": lambda x, factor, bias=0.0: factor * x + bias,
    "sqrt": lambda x: x**0.5,
    "relu": lambda x: plain_fc(x, jnp.eye(x.shape[-1]), activation="relu"),
    "tanh": lambda x: plain_fc(x, jnp.eye(x.shape[-1]), activation="tanh"),
    "sigmoid": lambda x: plain_fc(x, jnp.eye(x.shape[-1]), activation="sigmoid"),
    "softmax": plain_softmax,
    "reshape": plain_reshape,
    "concat": lambda *xs, axis=-1: jnp.concatenate(xs, axis),
    "reduce_sum": plain_sum,
    "reduce_mean": plain_mean,
    "softmax_cross_entropy": plain_softmax_cross_entropy,
    "sigmoid_cross_entropy": plain_sigmoid_cross_entropy,
    "mean_squared_error": lambda p, t, **how: reduced((p - t) ** 2, **how),
}


@pytest.mark.parametrize("use", DIFFERENTIABLE, ids=str)
def test_value_and_gradient_are_those_of_a_plain_formula(use: Use):
    use = use.of("float64")
    arrays = use.arrays(seed=3)
    if use.kind == "sqrt":
        arrays = [np.abs(x) for x in arrays]
    function, plain = getattr(ops, use.kind), PLAIN[use.kind]
    floats = [i for i, t in enumerate(use.types) if t.is_float]
    (kind,) = use.declaration.infer(use.types, use.full)
    dy = np.random.default_rng(5).normal(size=kind.sizes(BATCH))

    @jax.jit
    def mine(*xs):
        out, residuals = function.forward(*xs, **use.keywords())
        saved = [xs[i] for i in use.declaration.saves(use.types, use.full)]
        found = function.backward(residuals, *saved, jnp.asarray(dy))
        return out, function(*xs, **use.keywords()), [found[i] for i in floats]

    @jax.jit
    def theirs(*xs):
        def weighted(*xs):
            out = plain(*xs, **use.keywords())
            return jnp.sum(dy * out), out

        gradient = jax.grad(weighted, floats, has_aux=True)
        found, out = gradient(*xs)
        return out, found

    with jax.enable_x64(True):
        out, alone, gradients = mine(*arrays)
        value, wanted = theirs(*arrays)
    assert out.dtype == np.float64
    np.testing.assert_allclose(out, value, rtol=1e-12)
    np.testing.assert_allclose(alone, value, rtol=1e-12)
    for found, gradient in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(found, gradient, rtol=1e-10, atol=1e-12)


def gradient_of(kind, *inputs, dy=1.0, **attrs):
    """The result and the first operand's gradient, the saved operands looked up."""
    function = getattr(ops, kind)
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


def test_softmax_and_sigmoid_do_not_overflow():
    extreme = jnp.array([1000.0, -1000.0])
    for kind in ("softmax", "sigmoid"):
        out, slope = gradient_of(kind, extreme, dy=jnp.ones(2))
        np.testing.assert_array_equal(out, [1, 0])
        np.testing.assert_array_equal(slope, [0, 0])


def test_the_gradient_of_a_quotient_survives_a_denominator_whose_square_overflows():
    large = jnp.array([1e30])
    out, residuals = ops.div.forward(large, large)
    _, db = ops.div.backward(residuals, large, large, jnp.array([1.0]))
    assert out == 1.0
    np.testing.assert_allclose(db, [-1e-30], rtol=1e-6)


def test_relu_has_no_slope_at_zero():
    _, slope = gradient_of("relu", jnp.zeros(2), dy=jnp.ones(2))
    np.testing.assert_array_equal(slope, [0, 0])


def test_sqrt_has_jax_s_slope_at_zero():
    _, slope = gradient_of("sqrt", jnp.float32(0))
    assert slope == jax.grad(jnp.sqrt)(0.0) == np.inf


@pytest.mark.parametrize("wrong", [-1, 3, 2**31 - 1])
def test_an_id_or_label_out_of_range_gives_nan(wrong):
    ids = jnp.array([1, wrong])
    rows = ops.embedding(ids, jnp.ones((3, 2)))
    np.testing.assert_array_equal(rows, [[1, 1], [np.nan, np.nan]])
    losses = ops.softmax_cross_entropy(jnp.zeros((2, 3)), ids, reduce="none")
    np.testing.assert_array_equal(np.isnan(losses), [False, True])


def test_an_id_out_of_range_moves_no_row_of_the_table():
    table = jnp.ones((3, 2))
    _, residuals = ops.embedding.forward(jnp.array([-1, 3, 1]), table)
    _, slope = ops.embedding.backward(
        residuals, jnp.array([-1, 3, 1]), jnp.ones((3, 2))
    )
    np.testing.assert_array_equal(slope, [[0, 0], [1, 1], [0, 0]])
