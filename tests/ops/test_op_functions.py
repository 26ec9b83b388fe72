"""Forward and backward in separate programs, and the residuals between them."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from placer import ops
from placer.errors import OpError

RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(8, 5)).astype(np.float32)
LABEL = RNG.integers(0, 3, 8).astype(np.int32)
W1 = RNG.normal(size=(5, 4)).astype(np.float32)
B1 = RNG.normal(size=4).astype(np.float32)
W2 = RNG.normal(size=(4, 3)).astype(np.float32)
B2 = np.zeros(3, np.float32)


@pytest.fixture
def programs():
    """Return forward and backward of a two-layer network, jitted separately."""

    @jax.jit
    def forward(w1, b1, w2, b2, image, label):
        h, h_res = ops.fc.forward(image, w1, b1, activation="relu")
        logits, logits_res = ops.fc.forward(h, w2, b2)
        loss, loss_res = ops.softmax_cross_entropy.forward(logits, label, count=8)
        return loss, h, (h_res, logits_res, loss_res)

    @jax.jit
    def backward(residuals, w1, w2, image, label, h):
        h_res, logits_res, loss_res = residuals
        d_logits, none = ops.softmax_cross_entropy.backward(loss_res, label, 1.0)
        assert none is None
        d_h, d_w2, d_b2 = ops.fc.backward(logits_res, h, w2, d_logits)
        _, d_w1, d_b1 = ops.fc.backward(h_res, image, w1, d_h)
        return d_w1, d_b1, d_w2, d_b2

    return forward, backward


def run(programs):
    forward, backward = programs
    loss, h, residuals = forward(W1, B1, W2, B2, IMAGE, LABEL)
    return loss, residuals, backward(residuals, W1, W2, IMAGE, LABEL, h)


def test_the_gradient_equals_that_of_a_single_program(programs):
    def plain(w1, b1, w2, b2):
        logits = jax.nn.relu(IMAGE @ w1 + b1) @ w2 + b2
        rows = optax.softmax_cross_entropy_with_integer_labels(logits, LABEL)
        return rows.mean()

    loss, _, gradients = run(programs)
    value, expected = jax.value_and_grad(plain, (0, 1, 2, 3))(W1, B1, W2, B2)
    np.testing.assert_allclose(loss, value, rtol=1e-6)
    for mine, reference in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-7)


def test_a_second_step_compiles_nothing(programs):
    for _ in range(3):
        run(programs)
    assert [program._cache_size() for program in programs] == [1, 1]


def test_residuals_contain_no_operand(programs):
    _, residuals, _ = run(programs)
    shapes = [[(x.dtype.name, x.shape) for x in r.extra] for r in residuals]
    assert shapes == [[("bool", (8, 4))], [], [("float32", (8, 3))]]


def test_the_same_value_as_two_operands():
    x = jnp.array([3.0, -2.0])
    _, residuals = jax.jit(lambda x: ops.mul.forward(x, x))(x)
    assert residuals.extra == ()
    da, db = ops.mul.backward(residuals, x, x, jnp.ones(2))
    np.testing.assert_array_equal(da + db, 2 * x)


def test_forward_works_outside_jit():
    y, residuals = ops.fc.forward(IMAGE, W1, B1, activation="tanh")
    _, d_w, _ = ops.fc.backward(residuals, IMAGE, W1, jnp.ones_like(y))
    expected = jax.grad(lambda w: jnp.tanh(IMAGE @ w + B1).sum())(W1)
    np.testing.assert_allclose(d_w, expected, rtol=1e-5, atol=1e-6)


def test_backward_raises_for_a_wrong_number_of_arguments():
    _, residuals = ops.fc.forward(IMAGE, W1)
    with pytest.raises(TypeError, match="2 saved operands and 1 cotangents, got 1"):
        ops.fc.backward(residuals, jnp.ones((8, 4)))


def test_a_traced_count_needs_no_second_program_for_a_short_batch():
    program = jax.jit(
        lambda x, y, n: (
            ops.mean_squared_error(x, y, count=n),
            ops.reduce_mean(x, count=n),
        )
    )
    x, y = jnp.array([[3.0, 1.0], [1.0, 2.0]]), jnp.zeros((2, 2))
    assert [float(v) for v in program(x, y, 2)] == [3.75, 1.75]
    assert [float(v) for v in program(x, y, 4)] == [1.875, 0.875]
    assert program._cache_size() == 1


@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 3.0])
def test_clip_scale_equals_clip_by_global_norm_of_optax(norm):
    gradients = {
        "w": jnp.array([[0.6, 0.0], [0.0, 0.0]]) * norm,
        "b": jnp.array([0.8]) * norm,
    }
    clip = optax.clip_by_global_norm(1.0)
    expected, _ = clip.update(gradients, clip.init(gradients))
    squares = [ops.sum_of_squares(g) for g in gradients.values()]
    factor = ops.clip_scale(*squares, max_norm=1.0)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(factor * gradient, expected[name], rtol=1e-6)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_clip_part_clips_the_estimate_of_optax(share):
    """A node with a share of the rows takes its part / share for the whole."""
    parts = (jnp.array([[0.6, 0.0], [0.0, 0.9]]), jnp.array([0.8]))
    estimates = [part / share for part in parts]
    for name, clip in {
        "global_norm": optax.clip_by_global_norm(1.0),
        "norm": None,
        "value": optax.clip(1.0),
    }.items():
        clipped = ops.clip_part(*parts, share=share, **{name: 1.0})
        if clip is None:
            expected = [e * min(1.0, 1.0 / jnp.linalg.norm(e)) for e in estimates]
        else:
            expected, _ = clip.update(estimates, clip.init(estimates))
        for got, want in zip(clipped, expected, strict=True):
            np.testing.assert_allclose(got, want * share, rtol=1e-6)


def test_clip_part_without_rows_changes_nothing():
    part = ops.clip_part(jnp.zeros(3), share=0.0, global_norm=1.0)
    assert part.shape == (3,)
    assert not part.any()


def test_accumulate_adds_its_operands_in_order():
    big, small = jnp.float32(1e8), jnp.float32(1.0)
    assert ops.accumulate(big, small, -big) == 0.0
    assert ops.accumulate(big, -big, small) == 1.0


def test_importing_the_ops_imports_neither_jax_nor_numpy():
    code = (
        "import sys; from placer import ops; ops.find('fc'); ops.kinds();"
        "import placer.ops.attributes, tools.op_reference as r; r.pages();"
        "loaded = {'jax', 'numpy'} & set(sys.modules); assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_hint_for_an_unknown_op():
    with pytest.raises(OpError) as caught:
        ops.find("softmx")
    assert str(caught.value) == "unknown op 'softmx'\n  hint: did you mean 'softmax'?"
    with pytest.raises(AttributeError, match="no op 'softmx'"):
        _ = ops.softmx


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_squares_of_half_floats_are_summed_in_float32(dtype):
    large = jnp.full((300, 300), 300, dtype)
    total = ops.sum_of_squares(large, jnp.ones(3))
    assert total.dtype == jnp.float32
    np.testing.assert_allclose(total, 90_000.0 * float(large[0, 0]) ** 2, rtol=1e-6)


@pytest.mark.parametrize("rate", [0.99999999999, 1 - 2**-53])
def test_a_rate_next_to_1_drops_all_elements(rate):
    position = np.stack([np.ones(8), np.arange(8)], -1).astype(np.uint32)
    drop = jax.jit(lambda x: ops.drop(x, position, rate=rate, stream=1))
    np.testing.assert_array_equal(drop(jnp.ones((8, 50))), np.zeros((8, 50)))
