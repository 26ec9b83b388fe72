"""multi_head_attention: attention between learned projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from placer.errors import OpError
from placer.ops.common.checks import check_divides
from placer.ops.common.roles import make_parameters, name_operands, require_shapes
from placer.ops.declaration import (
    Attr,
    Attrs,
    Declaration,
    LayerParameter,
    case,
    flag,
    required,
)
from placer.ops.linear import dense
from placer.ops.operand import Operand, Types
from placer.ops.sequence import attention
from placer.ops.sequence.attention import (
    CAUSAL,
    MASK,
    check_mask,
    check_sequences,
    sequence_width,
)
from placer.ops.sequence.projections import (
    BIASED,
    SEQUENCES,
    WEIGHTS,
    is_saved,
    projection_sources,
)
from placer.place.types import BATCH, Dim, TensorType
from placer.plan.settings.training.initializers import Init

_name_operands = partial(
    name_operands,
    "needs a query, then optionally a key, a value and a mask",
    SEQUENCES,
    (1, 2, 3),
    "mask",
)


def operand_names(types: Types) -> tuple[str, ...]:
    """Return the names of the operands; raise OpError if they are invalid.

    The last operand is a bias if it has rank 1. The last operand before the weights is
    the mask if it is not float.
    """
    return _name_operands(types, WEIGHTS, BIASED)


def _check(
    names: Sequence[str], types: Types, attrs: Attrs, size: int
) -> dict[str, TensorType]:
    """Return the types that queries, keys and values are projected from."""
    present = [name for name in names if name in SEQUENCES]
    check_sequences(present, types)
    named = dict(zip(names, types, strict=True))
    inputs = {which: named[name] for which, name in projection_sources(names).items()}
    if "mask" in named:
        check_mask(names.index("mask"), types, inputs["key"])
    check_divides(attrs, "heads", size, f"a size of {size}")
    return inputs


def _shapes(inputs: Mapping[str, TensorType], size: int) -> dict[str, tuple[Dim, ...]]:
    shapes: dict[str, tuple[Dim, ...]] = {}
    for which in SEQUENCES:
        shapes[f"w_{which}"] = (inputs[which].shape[-1], size)
        shapes[f"b_{which}"] = (size,)
    width = inputs["query"].shape[-1]
    return {**shapes, "w_output": (size, width), "b_output": (width,)}


def _size(names: Sequence[str], types: Types) -> int:
    w = types[names.index("w_query")]
    return int(w.shape[-1]) if w.rank and w.shape[-1] != BATCH else 1


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    names = operand_names(types)
    size = _size(names, types)
    inputs = _check(names, types, attrs, size)
    require_shapes(names, types, _shapes(inputs, size))
    return (types[0],)


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    names = _name_operands(types)
    size = attrs["size"]
    if size is None:
        size = sequence_width("query", 0, types)
    if size < 1:
        raise OpError(f"needs a size of at least 1, not {size}", attr="size")
    shapes = _shapes(_check(names, types, attrs, size), size)
    created = {name: shapes[name] for name in (BIASED if attrs["bias"] else WEIGHTS)}
    initializers: dict[str, Init] = dict.fromkeys(WEIGHTS, "xavier_uniform")
    return make_parameters(types[0].dtype, created, initializers)


class _Part(NamedTuple):
    """One of the ops that the layer is made of, with the names of operands and result."""

    declaration: Declaration
    operands: Sequence[str]
    types: Types
    attrs: Attrs
    result: str


def _parts(types: Types, attrs: Attrs) -> list[_Part]:
    names = operand_names(types)
    typed = dict(zip(names, types, strict=True))
    parts: list[_Part] = []

    def add(declaration: Declaration, operands: str, attrs: Attrs, result: str) -> None:
        present = [name for name in operands.split() if name in typed]
        part = _Part(declaration, present, [typed[n] for n in present], attrs, result)
        (typed[result],) = declaration.result_types(part.types, attrs)
        parts.append(part)

    plain = {"activation": "none", "transpose_w": False}
    for which, source in projection_sources(names).items():
        add(dense.FC, f"{source} w_{which} b_{which}", plain, f"projected_{which}")
    add(
        attention.ATTENTION,
        "projected_query projected_key projected_value mask",
        {**attrs, "scale": None},
        "attended",
    )
    add(dense.FC, "attended w_output b_output", plain, "out")
    return parts


def _residuals(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    *_, attended, output = _parts(types, attrs)
    probabilities = attended.declaration.residuals(attended.types, attended.attrs)
    return (*attended.types[:3], *probabilities, output.types[0])


def _flops(types: Types, attrs: Attrs) -> int:
    parts = _parts(types, attrs)
    return sum(part.declaration.flops(part.types, part.attrs) for part in parts)


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    names, total = operand_names(types), 0
    with_gradient = {names[i] for i in wrt}
    for part in _parts(types, attrs):
        inner = [i for i, name in enumerate(part.operands) if name in with_gradient]
        if inner:
            with_gradient.add(part.result)
            total += part.declaration.grad_flops(part.types, part.attrs, inner)
    return total


def _weight(which: str, doc: str) -> tuple[Operand, Operand]:
    rows, columns = doc.split(" to ")
    return (
        Operand(f"w_{which}", f"the same dtype, [{rows}, {columns}]", parameter=True),
        Operand(
            f"b_{which}", f"the same dtype, [{columns}]", optional=True, parameter=True
        ),
    )


MULTI_HEAD_ATTENTION = Declaration(
    "multi_head_attention",
    "Multi-head attention. Projects queries, keys and values, applies `attention`"
    " in each head, and projects the result to the width of the query. One"
    " sequence gives self-attention. With two sequences, the second is both key"
    " and value. A query without any visible key gives zeros before the last"
    " projection. Creates the parameters `w_query`, `b_query`, `w_key`, `b_key`,"
    " `w_value`, `b_value`, `w_output` and `b_output`.",
    (
        Operand("query", "float, [batch, time, width]"),
        Operand(
            "key",
            "the same dtype, [batch, keys, key width]; by default the query",
            optional=True,
        ),
        Operand(
            "value",
            "the same dtype, [batch, keys, value width]; by default the key",
            optional=True,
        ),
        MASK,
        *_weight("query", "width to size"),
        *_weight("key", "key width to size"),
        *_weight("value", "value width to size"),
        *_weight("output", "size to width"),
    ),
    _infer,
    flops=_flops,
    grad_flops=_grad_flops,
    attrs=(
        required("heads", int, "the number of heads; each has the width size / heads"),
        Attr(
            "size",
            int | None,
            "the total width of all heads; null: the width of the query",
            for_parameters=True,
        ),
        flag("bias", "whether to add biases", default=True, for_parameters=True),
        CAUSAL,
    ),
    operand_names=operand_names,
    saves=lambda types, attrs: tuple(
        i for i, name in enumerate(operand_names(types)) if is_saved(name)
    ),
    residuals=_residuals,
    creates=_parameters,
    formula="out = attention(query · w_query + b_query, key · w_key + b_key,"
    " value · w_value + b_value) · w_output + b_output",
    source="Vaswani et al. (2017); initial weights as in Glorot and Bengio (2010),"
    " biases 0; widths as in PyTorch's MultiheadAttention",
    cases=(
        case(
            "float32[batch, 20, 64]" + ", float32[64, 64], float32[64]" * 4,
            heads=4,
            causal=True,
        ),
        case(
            "float32[batch, 5, 64], float32[batch, 20, 48], int32[batch],"
            " float32[64, 32], float32[48, 32], float32[48, 32], float32[32, 64]",
            heads=2,
        ),
    ),
)
