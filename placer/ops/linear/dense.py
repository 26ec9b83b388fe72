"""fc and matmul: matrix products."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.common.checks import (
    broadcast_rule,
    broadcast_shapes,
    check_attr,
    count_elements,
    is_static,
)
from placer.ops.declaration import (
    Attrs,
    BatchRule,
    Declaration,
    LayerParameter,
    case,
    flag,
    layer_size,
)
from placer.ops.elementwise.activation import BIAS, activation_attr
from placer.ops.linear.weighted import check_bias, declare_weighted, make_weights
from placer.ops.operand import Operand, Types, check_operand
from placer.place.types import BATCH, Dim, TensorType

_FC = (
    Operand("x", "float, [batch, …, in]", dtype="float"),
    Operand("w", "the same dtype, [in, size]", parameter=True, same="dtype"),
    Operand("b", "the same dtype, [size]", optional=True, parameter=True, same="dtype"),
)


def _input_size(x: TensorType) -> int:
    """Return x's last dimension; raise OpError if x is not a valid operand of fc."""
    if x.rank < 2:
        raise OpError(
            f"needs an operand of at least two dimensions as 'x', not {x}",
            operand=0,
            hint="reshape it to [batch, 1]" if x.has_batch else None,
        )
    width = x.shape[-1]
    if width == BATCH:
        raise OpError(
            f"multiplies the last dimension, which is the batch in 'x' {x}", operand=0
        )
    return int(width)


def _infer_fc(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, w = types[0], types[1]
    width = _input_size(x)
    in_axis, out_axis = (1, 0) if attrs["transpose_w"] else (0, 1)
    if w.rank != 2 or not is_static(w.shape) or w.shape[in_axis] != width:
        expected = f"[size, {width}]" if attrs["transpose_w"] else f"[{width}, size]"
        raise OpError(f"needs 'w' {expected} for 'x' {x}, 'w' is {w}", operand=1)
    out = w.shape[out_axis]
    check_bias(types, out)
    return (TensorType(x.dtype, (*x.shape[:-1], out)),)


def _fc_parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    width, size = _input_size(types[0]), attrs["size"]
    check_attr(attrs, "size", size >= 1, "a size of at least 1")
    shape = (size, width) if attrs["transpose_w"] else (width, size)
    return make_weights(types[0].dtype, shape, size, attrs["bias"])


def _fc_product_flops(types: Types, attrs: Attrs) -> int:
    outputs = types[1].shape[:1] if attrs["transpose_w"] else types[1].shape[1:]
    return 2 * types[0].numel() * count_elements(outputs)


FC = declare_weighted(
    "fc",
    "Fully connected layer (Keras' Dense, PyTorch's Linear). Multiplies the last"
    " dimension of x by a weight matrix, adds a bias and applies an activation."
    " The result is [batch, …, size]. Creates the parameters `w` and `b`.",
    _FC,
    _infer_fc,
    _fc_product_flops,
    attrs=(
        layer_size("size", int, "the number of outputs", 128),
        BIAS,
        activation_attr("the last dimension"),
        flag(
            "transpose_w",
            "whether `w` is [size, in], for example to share the table of an embedding",
        ),
    ),
    creates=_fc_parameters,
    formula="out = activation(x · w + b)",
    source="initial values as in Keras: `w` by Glorot and Bengio (2010), `b` 0",
    cases=(
        case("float32[batch, 64], float32[64, 128], float32[128]", activation="relu"),
        case("float32[batch, 64], float32[64, 128], float32[128]"),
        case(
            "float32[batch, 20, 64], float32[1000, 64]",
            activation="softmax",
            transpose_w=True,
        ),
    ),
)


def _factors(types: Types, attrs: Attrs) -> tuple[tuple[Dim, ...], tuple[Dim, ...]]:
    """Return the shapes of a and b after the transpositions."""
    a, b = (type_.shape for type_ in types)
    return (
        (*a[:-2], a[-1], a[-2]) if attrs["transpose_a"] else a,
        (*b[:-2], b[-1], b[-2]) if attrs["transpose_b"] else b,
    )


def _infer_matmul(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    for index, name in enumerate("ab"):
        needed = "operands of at least two dimensions"
        check_operand(types, index, name, types[index].rank >= 2, needed)
    a, b = _factors(types, attrs)
    if a[-1] != b[-2]:
        raise OpError(
            f"contracts {a[-1]} of 'a' {types[0]} with {b[-2]} of 'b' {types[1]}",
            operand=1,
            hint=_transposition(types, attrs),
        )
    dtype = types[0].dtype
    leading = broadcast_shapes([TensorType(dtype, dims[:-2]) for dims in (a, b)])
    return (TensorType(dtype, (*leading, a[-2], b[-1])),)


def _transposition(types: Types, attrs: Attrs) -> str | None:
    """Return a hint if one more transposition makes the operands fit."""
    for name in ("transpose_a", "transpose_b"):
        flipped = {**attrs, name: not attrs[name]}
        a, b = _factors(types, flipped)
        if a[-1] == b[-2]:
            return f"{name}: {str(flipped[name]).lower()} would fit"
    return None


def _rows_matmul(types: Types, attrs: Attrs) -> BatchRule:
    a, b = types
    (out,) = _infer_matmul(types, attrs)
    if out.rank == 2 and a.has_rows and b.has_rows:
        contracted = attrs["transpose_a"] and not attrs["transpose_b"]
        return "reduce" if contracted and is_static(out.shape) else "whole"
    # Only the rows of a become rows of a matrix product
    mixed = out.rank == 2 and b.has_batch
    if mixed or any(BATCH in type_.shape[1:] for type_ in (a, b, out)):
        return "whole"
    return broadcast_rule(types, out.shape)


def _matmul_flops(types: Types, attrs: Attrs) -> int:
    (out,) = _infer_matmul(types, attrs)
    a, _ = _factors(types, attrs)
    return 2 * out.numel() * count_elements(a[-1:])


MATMUL = Declaration(
    "matmul",
    "The matrix product of the last two dimensions of a and b. Leading dimensions"
    " are broadcast: one matrix product for each row, or for each head of each"
    " row.",
    (
        Operand("a", "float, […, m, k]", dtype="float"),
        Operand("b", "the same dtype, […, k, n]", dtype="float", same="dtype"),
    ),
    _infer_matmul,
    _rows_matmul,
    _matmul_flops,
    lambda types, attrs, wrt: _matmul_flops(types, attrs) * len(wrt),
    attrs=(
        flag("transpose_a", "whether `a` is […, k, m]"),
        flag("transpose_b", "whether `b` is […, n, k]"),
    ),
    linear=lambda types, attrs: ((0,), (1,)),
    saves=lambda types, attrs: (0, 1),
    formula="out = a · b",
    cases=(
        case("float32[batch, 8], float32[8, 4]"),
        case("float32[batch, 8], float32[batch, 4]", transpose_a=True),
        case("float32[batch, 8], float32[batch, 8]", transpose_b=True),
        case("float32[batch, 5, 8], float32[batch, 8, 3]"),
        case("float32[batch, 4, 20, 16], float32[batch, 4, 16, 20]"),
    ),
)
