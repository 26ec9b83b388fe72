"""multi_head_attention: attention between learned projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from placer.errors import OpError
from placer.ops.common.checks import each_row
from placer.ops.common.roles import by_name, need_shapes
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    LayerParameter,
    Operand,
    Types,
)
from placer.ops.sequence.attention import (
    CAUSAL,
    MASK,
    SEQUENCES,
    attention_flops,
    attention_grad_flops,
    check_heads,
    check_mask,
    check_sequences,
    probabilities,
    width_of,
)
from placer.types import BATCH, Dim, TensorType

_PROJECTIONS = (*SEQUENCES, "output")
_WEIGHTS = tuple(f"w_{which}" for which in _PROJECTIONS)
_BIASED = tuple(f"{letter}_{which}" for which in _PROJECTIONS for letter in "wb")


def roles(types: Types) -> tuple[str, ...]:
    """The names of multi_head_attention's operands; OpError when they are none.

    Biases are there when the last is of rank 1, the mask is an operand before the
    weights that is not float, and what else stands there are sequences.
    """
    weights = _BIASED if types and types[-1].rank == 1 else _WEIGHTS
    return (*_before_weights(types[: max(len(types) - len(weights), 0)]), *weights)


def _before_weights(types: Types) -> tuple[str, ...]:
    masked = len(types) > 1 and not types[-1].is_float
    sequences = len(types) - masked
    if not 1 <= sequences <= 3:
        raise OpError(
            "multi_head_attention takes query, then key and value or one for both or"
            " neither, then mask or not; given are"
            f" {', '.join(map(str, types)) or 'none'}"
        )
    return (*SEQUENCES[:sequences], *(("mask",) if masked else ()))


def sources(names: Sequence[str]) -> dict[str, str]:
    """The operands that queries, keys and values are projected from."""
    given = [name for name in names if name in SEQUENCES]
    return {name: given[min(i, len(given) - 1)] for i, name in enumerate(SEQUENCES)}


def is_saved(name: str) -> bool:
    """Whether backward needs the operand itself."""
    return name in SEQUENCES or name in _WEIGHTS


def _check(
    names: Sequence[str], types: Types, attrs: Attrs, size: int
) -> dict[str, TensorType]:
    """The sequences to project from; OpError when the operands do not fit."""
    kind = "multi_head_attention"
    given = [name for name in names if name in SEQUENCES]
    check_sequences(kind, given, types)
    named = by_name(names, types)
    found = {which: named[name] for which, name in sources(names).items()}
    if "mask" in named:
        check_mask(kind, names.index("mask"), types, found["key"])
    check_heads(kind, attrs, "a size", size)
    return found


def _shapes(found: Mapping[str, TensorType], size: int) -> dict[str, tuple[Dim, ...]]:
    """What shapes the parameters have."""
    shapes: dict[str, tuple[Dim, ...]] = {}
    for which in SEQUENCES:
        shapes[f"w_{which}"] = (found[which].shape[-1], size)
        shapes[f"b_{which}"] = (size,)
    width = found["query"].shape[-1]
    return {**shapes, "w_output": (size, width), "b_output": (width,)}


def _size(names: Sequence[str], types: Types) -> int:
    """The width of all heads together."""
    w = types[names.index("w_query")]
    return int(w.shape[-1]) if w.rank and w.shape[-1] != BATCH else 1


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    names = roles(types)
    size = _size(names, types)
    found = _check(names, types, attrs, size)
    need_shapes("multi_head_attention", names, types, _shapes(found, size))
    return (types[0],)


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    names = _before_weights(types)
    size = attrs["size"]
    if size is None:
        size = width_of("multi_head_attention", "query", 0, types)
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
    """Queries, keys and values after their projections."""
    names = roles(types)
    size, named = _size(names, types), by_name(names, types)
    query, key, value = (
        TensorType(types[0].dtype, (*named[source].shape[:2], size))
        for source in sources(names).values()
    )
    return query, key, value


def _residuals(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    query, key, value = _projected(types)
    return query, key, value, probabilities(query, key, attrs["heads"]), query


def _products(types: Types) -> dict[str, int]:
    """Operations of each projection."""
    names = roles(types)
    named, size = by_name(names, types), _size(names, types)
    of = {**sources(names), "output": "query"}
    return {which: 2 * named[name].numel() * size for which, name in of.items()}


def _flops(types: Types, attrs: Attrs) -> int:
    names, projected = roles(types), _projected(types)
    biased = [*projected, types[0]] if "b_output" in names else []
    return (
        sum(_products(types).values())
        + attention_flops(projected, attrs, masked="mask" in names)
        + sum(type_.numel() for type_ in biased)
    )


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    names, products, projected = roles(types), _products(types), _projected(types)
    wanted = {names[i] for i in wrt}
    total = products["output"] * ("w_output" in wanted)
    total += types[0].numel() * ("b_output" in wanted)
    through = []
    for (which, source), out in zip(sources(names).items(), projected, strict=True):
        of_input, of_weight, of_bias = (
            name in wanted for name in (source, f"w_{which}", f"b_{which}")
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
            f"b_{which}",
            f"the same dtype, [{columns}]",
            optional=True,
            parameter=True,
        ),
    )


MULTI_HEAD_ATTENTION = Declaration(
    "multi_head_attention",
    "A layer that projects queries, keys and values, lets each query look at the keys in"
    " each of its heads, and projects what they saw. With one sequence it is"
    " self-attention, with two the second gives keys and values. A query that may look at"
    " no key sees zeros, as in attention.",
    (
        Operand("query", "float, [batch, time, width]"),
        Operand(
            "key",
            "the same dtype, [batch, keys, width of a key]; else the query",
            optional=True,
        ),
        Operand(
            "value",
            "the same dtype, [batch, keys, width of a value]; else the key",
            optional=True,
        ),
        MASK,
        *_weight("query", "width to size"),
        *_weight("key", "width of a key to size"),
        *_weight("value", "width of a value to size"),
        *_weight("output", "size to width"),
    ),
    _infer,
    each_row,
    _flops,
    _grad_flops,
    attrs=(
        Attr(
            "heads",
            int,
            "how many heads there are, each of size / heads",
            required=True,
        ),
        Attr(
            "size",
            int | None,
            "the width of all heads together; null: that of the query",
            default=None,
            build=True,
        ),
        Attr("bias", bool, "whether there are biases", default=True, build=True),
        CAUSAL,
    ),
    roles=roles,
    saves=lambda types, attrs: tuple(
        i for i, name in enumerate(roles(types)) if is_saved(name)
    ),
    residuals=_residuals,
    parameters=_parameters,
    formula="out = attention(query · w_query + b_query, key · w_key + b_key,"
    " value · w_value + b_value) · w_output + b_output",
    source="Vaswani et al. (2017). Weights begin as Glorot and Bengio (2010) have it,"
    " biases at 0; the widths are those of torch's MultiheadAttention",
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
    example="{name: seen, op: multi_head_attention, in: tokens, heads: 4, causal: true}",
)

DECLARATIONS = (MULTI_HEAD_ATTENTION,)
