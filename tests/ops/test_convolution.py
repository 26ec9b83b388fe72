"""Cost of convolutions, the programs of their backward, and their results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled_ops as ops
from support.op_gradient import result_and_gradients
from support.op_use import Use

COSTED = [
    Use("conv2d", ("float32[16, 28, 28, 8]", "float32[3, 3, 8, 16]")),
    Use(
        "conv2d",
        ("float32[16, 28, 28, 8]", "float32[3, 3, 8, 16]"),
        {"padding": "same", "strides": 2},
    ),
    Use(
        "conv2d",
        ("float32[16, 28, 27, 8]", "float32[3, 5, 8, 16]"),
        {"padding": [[2, 0], [5, 6]], "strides": [2, 1], "dilation": [1, 2]},
    ),
    Use(
        "conv2d",
        ("float32[16, 28, 28, 8]", "float32[3, 3, 4, 16]"),
        {"padding": "same", "groups": 2},
    ),
    Use(
        "conv1d",
        ("float32[16, 28, 8]", "float32[3, 8, 16]"),
        {"padding": [[4, 0]], "dilation": 2},
    ),
    Use(
        "conv2d_transpose",
        ("float32[16, 14, 14, 8]", "float32[3, 3, 16, 8]"),
        {"padding": "same", "strides": 2},
    ),
    Use(
        "conv1d_transpose",
        ("float32[16, 14, 8]", "float32[3, 16, 8]"),
        {"strides": [4]},
    ),
]


def structs(use: Use) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in use.types]


def backward(use: Use):
    """Return the gradients as a function of dy and the operands."""
    function = getattr(ops, use.kind)

    def gradients(dy, *xs):
        _, residuals = function.forward(*xs, **use.attrs)
        return function.backward(residuals, *(xs[i] for i in residuals.saves), dy)

    return gradients


@pytest.mark.parametrize("use", COSTED, ids=str)
def test_declared_flops_equal_those_of_xla(use):
    def count_flops(fn, *args) -> float:
        return jax.jit(fn).lower(*args).compile().cost_analysis()["flops"]

    function = getattr(ops, use.kind)
    inputs, declaration = structs(use), use.declaration
    forward = count_flops(lambda *xs: function(*xs, **use.attrs), *inputs)
    assert forward == declaration.flops(use.types, use.all_attrs)
    (out,) = use.results
    dy = jax.ShapeDtypeStruct(out.shape, out.dtype)
    both = count_flops(backward(use), dy, *inputs)
    assert (
        both == declaration.grad_flops(use.types, use.all_attrs, (0, 1)) == 2 * forward
    )


@pytest.mark.parametrize(
    "use", [use for use in COSTED if "groups" not in use.attrs], ids=str
)
def test_backward_is_two_convolutions(use):
    function = getattr(ops, use.kind)
    _, residuals = jax.eval_shape(
        lambda *xs: function.forward(*xs, **use.attrs), *structs(use)
    )
    (out,) = use.results
    dy = jax.ShapeDtypeStruct(out.shape, out.dtype)
    program = jax.make_jaxpr(function.backward)(residuals, *structs(use), dy)
    assert str(program).count("conv_general_dilated[") == 2


GROUPED = [(2, 4, "conv2d"), (4, 8, "conv2d"), (4, 8, "depthwise_conv2d")]


@pytest.mark.parametrize(("groups", "filters", "kind"), GROUPED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_grouped_convolutions_equal_those_of_xla(groups, filters, kind, dtype):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, 9, 8, 4)), dtype)
    w = jnp.asarray(rng.normal(size=(3, 2, 4 // groups, filters)), dtype)

    def reference(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            (2, 1),
            [(1, 2), (0, 1)],
            rhs_dilation=(1, 2),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    attrs = {"strides": [2, 1], "padding": [[1, 2], [0, 1]], "dilation": [1, 2]}
    kernel = w.reshape(3, 2, 4, 2) if kind == "depthwise_conv2d" else w
    if kind == "conv2d":
        attrs["groups"] = groups
    value, vjp = jax.vjp(reference, x, w)
    dy = jnp.asarray(rng.normal(size=value.shape), dtype)
    out, (dx, dw) = result_and_gradients(kind, x, kernel, dy=dy, **attrs)
    assert (out.dtype, dx.dtype, dw.dtype) == (x.dtype,) * 3
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == "float32" else {"atol": 0.15}
    for mine, expected in zip(
        (out, dx, dw.reshape(w.shape)), (value, *vjp(dy)), strict=True
    ):
        np.testing.assert_allclose(
            np.asarray(mine, np.float32), np.asarray(expected, np.float32), **close
        )


def test_other_devices_use_xlas_grouped_convolution():
    use = Use("conv2d", ("float32[2, 8, 8, 4]", "float32[3, 3, 2, 6]"), {"groups": 2})
    (out,) = use.results
    dy = jax.ShapeDtypeStruct(out.shape, out.dtype)
    for fn, inputs, number in (
        (lambda *xs: ops.conv2d(*xs, groups=2), structs(use), 1),
        (backward(use), [dy, *structs(use)], 2),
    ):
        program = jax.export.export(jax.jit(fn), platforms=["cuda"])(*inputs)
        assert program.mlir_module().count("stablehlo.convolution") == number


@pytest.mark.parametrize(
    ("attrs", "size"),
    [
        ({"padding": "valid"}, 9),
        ({"padding": "same"}, 8),
        ({"padding": 1}, 7),
        ({"padding": [[1, 0], [1, 0]]}, 8),
    ],
    ids=str,
)
def test_a_transposed_convolution_is_the_transpose_of_the_convolution(attrs, size):
    rng = np.random.default_rng(0)
    attrs = {"strides": 2, **attrs}
    w = rng.normal(size=(3, 3, 2, 5)).astype(np.float32)
    y = rng.normal(size=(1, 4, 4, 5)).astype(np.float32)
    image = ops.conv2d_transpose(y, w, **attrs)
    assert image.shape == (1, size, size, 2)
    x = rng.normal(size=image.shape).astype(np.float32)
    np.testing.assert_allclose(
        jnp.vdot(ops.conv2d(x, w, **attrs), y), jnp.vdot(x, image), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("window", "stride", "padding", "size"),
    [
        (3, 1, "valid", 7),
        (3, 1, "same", 5),
        (3, 2, "valid", 11),
        (3, 2, "same", 10),
        (2, 4, "valid", 20),
        (2, 4, "same", 20),
        (2, 4, 0, 18),
        (4, 2, 1, 10),
        (3, 2, [[1, 0]], 10),
    ],
)
def test_sizes_of_transposed_convolutions_are_those_of_keras_or_pytorch(
    window, stride, padding, size
):
    operands = ("float32[batch, 5, 2]", f"float32[{window}, 3, 2]")
    attrs = {"strides": stride, "padding": padding}
    (out,) = Use("conv1d_transpose", operands, attrs).results
    assert str(out) == f"float32[batch, {size}, 3]"


def test_padding_only_before_is_causal():
    x = np.random.default_rng(0).normal(size=(1, 6, 2)).astype(np.float32)
    later = x.copy()
    later[:, 4:] += 1
    w = np.ones((3, 2, 1), np.float32)
    mine, other = (ops.conv1d(a, w, padding=[[2, 0]]) for a in (x, later))
    np.testing.assert_array_equal(mine[:, :4], other[:, :4])
    assert not np.allclose(mine[:, 4:], other[:, 4:])


def test_same_pads_an_odd_element_at_the_end():
    x = np.array([1, 2, 3, 4], np.float32).reshape(1, 4, 1)
    w = np.array([1, 10], np.float32).reshape(2, 1, 1)
    out = ops.conv1d(x, w, padding="same")
    np.testing.assert_array_equal(out[0, :, 0], [21, 32, 43, 4])


def test_the_filters_of_a_channel_are_adjacent():
    x = jnp.arange(1.0, 4.0).reshape(1, 1, 1, 3)
    w = jnp.array([[1.0, 10.0]] * 3).reshape(1, 1, 3, 2)
    out = ops.depthwise_conv2d(x, w)
    np.testing.assert_array_equal(out[0, 0, 0], [1, 10, 2, 20, 3, 30])


def test_a_depthwise_gradient_of_half_floats_is_summed_in_float32():
    x = jnp.ones((1, 64, 64, 2), jnp.bfloat16)
    w = jnp.ones((1, 1, 2, 1), jnp.bfloat16)
    _, (_, dw) = result_and_gradients("depthwise_conv2d", x, w)
    np.testing.assert_array_equal(np.asarray(dw, np.float32).ravel(), [4096, 4096])
