"""Attention compared with JAX's, at extremes, and its cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled_ops as ops
from support.op_programs import backward_program, count_products
from support.op_use import Use

ROWS, TIME, HEADS, SIZE = 3, 6, 2, 4
RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = RNG.normal(size=(3, ROWS, TIME, HEADS * SIZE)).astype(np.float32)


def gradients(mask=None, dy=1.0, **attrs):
    operands = [QUERY, KEY, VALUE, *([] if mask is None else [mask])]
    out, residuals = ops.attention.forward(*operands, heads=HEADS, **attrs)
    dy = jnp.full_like(out, dy)
    return out, ops.attention.backward(residuals, QUERY, KEY, VALUE, dy)[:3]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, np.array([6, 1, 4], np.int32)])
def test_attention_equals_that_of_jax(causal, lengths):
    def reference(*sequences):
        heads = [x.reshape(ROWS, TIME, HEADS, SIZE) for x in sequences]
        out = jax.nn.dot_product_attention(
            *heads, is_causal=causal, key_value_seq_lengths=lengths
        )
        return out.reshape(ROWS, TIME, HEADS * SIZE)

    out, actual = gradients(lengths, causal=causal)
    expected, vjp = jax.vjp(reference, QUERY, KEY, VALUE)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-6)
    for mine, their in zip(actual, vjp(jnp.ones_like(expected)), strict=True):
        np.testing.assert_allclose(mine, their, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_a_query_without_keys_gives_zeros_and_no_gradient(causal):
    out, (d_query, d_key, d_value) = gradients(np.array([0, 2, 6]), causal=causal)
    for x in (out, d_query, d_key, d_value):
        np.testing.assert_array_equal(x[0], 0)
        assert np.isfinite(x).all()
        assert np.any(x[1:])


def test_hidden_keys_and_values_do_not_matter():
    lengths = np.array([1, 2, 3])
    hidden = np.arange(TIME) >= lengths[:, None]
    other = np.where(hidden[..., None], RNG.normal(size=KEY.shape), KEY)
    one = ops.attention(QUERY, KEY, VALUE, lengths, heads=HEADS)
    two = ops.attention(QUERY, other.astype(np.float32), VALUE, lengths, heads=HEADS)
    np.testing.assert_array_equal(one, two)


def test_the_three_forms_of_a_mask_are_equivalent():
    lengths = np.array([1, 4, 6])
    keys = np.arange(TIME) < lengths[:, None]
    pairs = np.broadcast_to(keys[:, None], (ROWS, TIME, TIME))
    first, *others = (
        ops.attention(QUERY, KEY, VALUE, mask, heads=HEADS)
        for mask in (lengths, keys, keys.astype(np.int8), pairs)
    )
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_nothing_overflows():
    large = jnp.full((1, 3, 2), 1e18, jnp.float32) * jnp.array([[[1.0], [-1.0], [2.0]]])
    out, residuals = ops.attention.forward(large, large, large)
    np.testing.assert_array_equal(out, large[:, [2, 1, 2]])
    for slope in ops.attention.backward(residuals, large, large, large, out):
        assert jnp.isfinite(slope).all()


def test_queries_are_scaled_before_the_product_overflows_float16():
    wide = jnp.full((1, 2, 4096), 5.0, jnp.float16)
    np.testing.assert_array_equal(ops.attention(wide, wide, wide), wide)


ATTENTION = Use(
    "attention", ("float32[4, 64, 128]", "float32[4, 96, 128]", "float32[4, 96, 64]"),
    {"heads": 2},
)  # fmt: skip
LAYER = Use(
    "multi_head_attention",
    (
        "float32[4, 32, 64]",
        "float32[4, 48, 96]",
        "float32[64, 128]",
        "float32[96, 128]",
        "float32[96, 128]",
        "float32[128, 64]",
    ),
    {"heads": 2},
)


@pytest.mark.parametrize(
    ("use", "forward", "backward"), [(ATTENTION, 2, 4), (LAYER, 6, 12)], ids=str
)
def test_the_backward_repeats_no_product(use, forward, backward):
    arrays = use.arrays()
    function = getattr(ops, use.kind)
    program = jax.make_jaxpr(lambda *xs: function.forward(*xs, **use.attrs)[0])
    assert count_products(program(*arrays).jaxpr) == forward
    assert count_products(jax.make_jaxpr(backward_program(use))(*arrays).jaxpr) == (
        forward + backward
    )


@pytest.mark.parametrize("use", [ATTENTION, LAYER], ids=str)
def test_declared_flops_equal_those_of_xla(use):
    arrays = use.arrays()

    def count_flops(program) -> float:
        return jax.jit(program).lower(*arrays).compile().cost_analysis()["flops"]

    types = use.types
    forward = use.declaration.flops(types, use.all_attrs)
    both = forward + use.declaration.grad_flops(types, use.all_attrs, range(len(types)))
    function = getattr(ops, use.kind)
    assert count_flops(lambda *xs: function(*xs, **use.attrs)) == pytest.approx(
        forward, rel=0.02
    )
    assert count_flops(backward_program(use)) == pytest.approx(both, rel=0.02)
