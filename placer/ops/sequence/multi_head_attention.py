"""multi_head_attention: attention of learned projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.errors import OpError
from placer.ops.common.roles import require_shapes, types_by_name
from placer.ops.declaration import Attr, Attrs, Case, Declaration, LayerParameter
from placer.ops.operand import Operand, Types
from placer.ops.sequence.attention import (
    CAUSAL,
    MASK,
    SEQUENCES,
    attention_flops,
    attention_grad_flops,
    check_heads,
    check_mask,
    check_sequences,
    probabilities_type,
    sequence_width,
)
from placer.types import BATCH, Dim, TensorType

_PROJECTIONS = (*SEQUENCES, "output")
_WEIGHTS = tuple(f"w_{which}" for which in _PROJECTIONS)
_BIASED = tuple(f"{letter}_{which}" for which in _PROJECTIONS for letter in "wb")


def operand_names(types: Types) -> tuple[str, ...]:
    """Return the names of the operands; raise OpError if they are not valid.

    There are biases if the last operand has rank 1. Of the operands before the weights,
    one that is not float is the mask; the others are sequences.
    """
    weights = _BIASED if types and types[-1].rank == 1 else _WEIGHTS
    return (*_before_weights(types[: max(len(types) - len(weights), 0)]), *weights)


def _before_weights(types: Types) -> tuple[str, ...]:
    masked = len(types) > 1 and not types[-1].is_float
    sequences = len(types) - masked
    if not 1 <= sequences <= 3:
        raise OpError(
            "multi_head_attention needs a query, then optionally a key, a value and a"
            f" mask; got {', '.join(map(str, types)) or 'none'}"
        )
    return (*SEQUENCES[:sequences], *(("mask",) if masked else ()))


def projection_sources(names: Sequence[str]) -> dict[str, str]:
    """Return the operands that queries, keys and values are projected from."""
    present = [name for name in names if name in SEQUENCES]
    last = len(present) - 1
    return {name: present[min(i, last)] for i, name in enumerate(SEQUENCES)}


def is_saved(name: str) -> bool:
    """Whether the backward needs the operand."""
    return name in SEQUENCES or name in _WEIGHTS


def _check(
    names: Sequence[str], types: Types, attrs: Attrs, size: int
) -> dict[str, TensorType]:
    """Return the types that queries, keys and values are projected from.

    Raises OpError if the operands do not fit together.
    """
    kind = "multi_head_attention"
    present = [name for name in names if name in SEQUENCES]
    check_sequences(kind, present, types)
    named = types_by_name(names, types)
    inputs = {which: named[name] for which, name in projection_sources(names).items()}
    if "mask" in named:
        check_mask(kind, names.index("mask"), types, inputs["key"])
    check_heads(kind, attrs, "a size", size)
    return inputs


def _shapes(inputs: Mapping[str, TensorType], size: int) -> dict[str, tuple[Dim, ...]]:
    """Return the shapes of the parameters, given the inputs of the projections."""
    shapes: dict[str, tuple[Dim, ...]] = {}
    for which in SEQUENCES:
        shapes[f"w_{which}"] = (inputs[which].shape[-1], size)
        shapes[f"b_{which}"] = (size,)
    width = inputs["query"].shape[-1]
    return {**shapes, "w_output": (size, width), "b_output": (width,)}


def _size(names: Sequence[str], types: Types) -> int:
    """Return the total width of all heads."""
    w = types[names.index("w_query")]
    return int(w.shape[-1]) if w.rank and w.shape[-1] != BATCH else 1


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    names = operand_names(types)
    size = _size(names, types)
    inputs = _check(names, types, attrs, size)
    require_shapes("multi_head_attention", names, types, _shapes(inputs, size))
    return (types[0],)


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    names = _before_weights(types)
    size = attrs["size"]
    if size is None:
        size = sequence_width("multi_head_attention", "query", 0, types)
    if size < 1:
        raise OpError(
            f"multi_head_attention needs a size of at least 1, not {size}", attr="size"
        )
    shapes = _shapes(_check(names, types, attrs, size), size)
    return tuple(
        LayerParameter(
            name,
            TensorType(types[0].dtype, shapes[name]),
            "xavier_uniform" if name in _WEIGHTS else "zeros",
        )
        for name in (_BIASED if attrs["bias"] else _WEIGHTS)
    )


def _projected(types: Types) -> tuple[TensorType, TensorType, TensorType]:
    """Return the types of queries, keys and values after their projections."""
    names = operand_names(types)
    size, named = _size(names, types), types_by_name(names, types)
    query, key, value = (
        TensorType(types[0].dtype, (*named[source].shape[:2], size))
        for source in projection_sources(names).values()
    )
    return query, key, value


def _residuals(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    query, key, value = _projected(types)
    return query, key, value, probabilities_type(query, key, attrs["heads"]), query


def _products(types: Types) -> dict[str, int]:
    """Return the operations of each projection."""
    names = operand_names(types)
    named, size = types_by_name(names, types), _size(names, types)
    sources = {**projection_sources(names), "output": "query"}
    return {which: 2 * named[name].numel() * size for which, name in sources.items()}


def _flops(types: Types, attrs: Attrs) -> int:
    names, projected = operand_names(types), _projected(types)
    biased = [*projected, types[0]] if "b_output" in names else []
    return (
        sum(_products(types).values())
        + attention_flops(projected, attrs, masked="mask" in names)
        + sum(type_.numel() for type_ in biased)
    )


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    names, products, projected = (
        operand_names(types),
        _products(types),
        _projected(types),
    )
    wrt_names = {names[i] for i in wrt}
    total = products["output"] * ("w_output" in wrt_names)
    total += types[0].numel() * ("b_output" in wrt_names)
    through = []
    for (which, source), out in zip(
        projection_sources(names).items(), projected, strict=True
    ):
        of_input, of_weight, of_bias = (
            name in wrt_names for name in (source, f"w_{which}", f"b_{which}")
        )
        total += products[which] * (of_input + of_weight) + out.numel() * of_bias
        if of_input or of_weight or of_bias:
            through.append(which)
    if through:
        total += products["output"] + attention_grad_flops(projected, attrs, through)
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
    "Multi-head attention: projects queries, keys and values, applies `attention` in"
    " each head, and projects the result to the width of the query. With one sequence"
    " it is self-attention; with two, the second is both key and value. A query that"
    " may attend to no key gets zeros before the last projection. Creates the"
    " parameters `w_query`, `b_query`, `w_key`, `b_key`, `w_value`, `b_value`,"
    " `w_output` and `b_output`.",
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
        Attr(
            "heads",
            int,
            "the number of heads, each of width size / heads",
            required=True,
        ),
        Attr(
            "size",
            int | None,
            "the total width of all heads; null: the width of the query",
            default=None,
            for_parameters=True,
        ),
        Attr("bias", bool, "whether to add biases", default=True, for_parameters=True),
        CAUSAL,
    ),
    operand_names=operand_names,
    saves=lambda types, attrs: tuple(
        i for i, name in enumerate(operand_names(types)) if is_saved(name)
    ),
    residuals=_residuals,
    parameters=_parameters,
    formula="out = attention(query · w_query + b_query, key · w_key + b_key,"
    " value · w_value + b_value) · w_output + b_output",
    source="Vaswani et al. (2017); initial weights as in Glorot and Bengio (2010),"
    " biases 0; widths as in PyTorch's MultiheadAttention",
    cases=(
        Case(
            ("float32[batch, 20, 64]", *["float32[64, 64]", "float32[64]"] * 4),
            {"heads": 4, "causal": True},
        ),
        Case(
            (
                "float32[batch, 5, 64]",
                "float32[batch, 20, 48]",
                "int32[batch]",
                "float32[64, 32]",
                "float32[48, 32]",
                "float32[48, 32]",
                "float32[32, 64]",
            ),
            {"heads": 2},
        ),
    ),
    example="{name: seen, op: multi_head_attention, in: tokens, heads: 4,"
    " causal: true}",
)
