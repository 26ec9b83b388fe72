"""attention: each step of a sequence looks at those of another, or of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from placer.errors import OpError
from placer.ops.common.checks import (
    INTEGERS,
    arity,
    each_row,
    need_float,
    need_same_dtype,
)
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Types,
)
from placer.types import BATCH, Dim, TensorType

SEQUENCES = ("query", "key", "value")

MASK = Operand(
    "mask",
    "which keys may be looked at, those that are true or not 0: bool or integer,"
    " [batch, keys] or [batch, time, keys]; or integer, [batch]: how many, from the"
    " first on",
    optional=True,
)
CAUSAL = Attr(
    "causal", bool, "whether step t looks at no key after the t-th", default=False
)


def width_of(kind: str, name: str, index: int, types: Types) -> int:
    """The last dimension of a sequence; OpError when the operand is none."""
    need_float(kind, name, types, index)
    type_ = types[index]
    if type_.rank != 3 or type_.shape[-1] == BATCH:
        raise OpError(
            f"{kind} needs sequences [batch, time, width], '{name}' is {type_}",
            operand=index,
        )
    return int(type_.shape[-1])


def check_sequences(kind: str, names: Sequence[str], types: Types) -> None:
    """OpError unless queries, keys and values are sequences that go together."""
    for index, name in enumerate(names):
        width_of(kind, name, index, types)
        first, same = (0, 1) if name != "value" else (1, 2)
        have, wanted = types[index].shape[:same], types[first].shape[:same]
        if have != wanted:
            raise OpError(
                f"{kind} needs '{name}' [{', '.join(map(str, wanted))}, …] for"
                f" '{names[first]}' {types[first]}, '{name}' is {types[index]}",
                operand=index,
            )
    need_same_dtype(kind, names, types[: len(names)])


def check_mask(kind: str, index: int, types: Types, keys: TensorType) -> None:
    """OpError unless operand `index` is a mask of `keys` for the queries, the first."""
    mask = types[index]
    rows, time = types[0].shape[:2]
    shapes: list[tuple[Dim, ...]] = [(rows, keys.shape[1]), (rows, time, keys.shape[1])]
    if mask.dtype in INTEGERS:
        shapes.append((rows,))
    elif mask.dtype != "bool":
        raise OpError(
            f"{kind} needs a mask of bool or integers, 'mask' is {mask}", operand=index
        )
    if mask.shape not in shapes:
        listed = " or ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)
        raise OpError(
            f"{kind} needs 'mask' {listed} for 'query' {types[0]}, 'mask' is {mask}",
            operand=index,
        )


def check_heads(kind: str, attrs: Attrs, what: str, width: int) -> None:
    """OpError unless the heads divide a width."""
    heads = attrs["heads"]
    if heads < 1 or width % heads:
        raise OpError(
            f"{kind} cannot cut {what} of {width} into {heads} heads", attr="heads"
        )


_ATTENTION = (
    Operand("query", "float, [batch, time, heads · size]"),
    Operand("key", "the same dtype, [batch, keys, heads · size]"),
    Operand("value", "the same dtype, [batch, keys, heads · size of a value]"),
    MASK,
)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    kind = "attention"
    arity(kind, _ATTENTION, types)
    check_sequences(kind, SEQUENCES, types)
    query, key, value = types[:3]
    if key.shape[-1] != query.shape[-1]:
        raise OpError(
            f"{kind} needs keys as wide as queries, 'query' is {query}, 'key' is {key}",
            operand=1,
        )
    for name, type_ in zip(SEQUENCES, types, strict=False):
        check_heads(kind, attrs, f"'{name}'", int(type_.shape[-1]))
    if len(types) > 3:
        check_mask(kind, 3, types, key)
    return (TensorType(query.dtype, (*query.shape[:2], value.shape[-1])),)


def probabilities(query: TensorType, key: TensorType, heads: int) -> TensorType:
    """What the softmax gives, which backward needs."""
    rows, time, _ = query.shape
    return TensorType(query.dtype, (rows, heads, time, key.shape[1]))


def _products(query: TensorType, key: TensorType, value: TensorType) -> tuple[int, int]:
    """Operations of the product with the keys, and of that with the values."""
    each = 2 * int(key.shape[1])
    times = query.numel() // int(query.shape[-1])
    return each * query.numel(), each * times * int(value.shape[-1])


def attention_flops(sequences: Types, attrs: Attrs, masked: bool) -> int:
    """Of query, key and value: the scaled query, two products and a softmax between."""
    query, key, _ = sequences
    softmax = 5 + masked + bool(attrs["causal"])
    scores = probabilities(query, key, attrs["heads"]).numel()
    return query.numel() + sum(_products(*sequences)) + softmax * scores


def attention_grad_flops(sequences: Types, attrs: Attrs, wrt: Collection[str]) -> int:
    """The same backwards, for those of query, key and value that are in `wrt`."""
    query, key, _ = sequences
    with_keys, with_values = _products(*sequences)
    total = with_values if "value" in wrt else 0
    scored = sum(name in wrt for name in ("query", "key"))
    if scored:
        total += with_values + 4 * probabilities(query, key, attrs["heads"]).numel()
    return total + scored * (with_keys + query.numel())


def _flops(types: Types, attrs: Attrs) -> int:
    return attention_flops(types[:3], attrs, masked=len(types) > 3)


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    return attention_grad_flops(types[:3], attrs, [SEQUENCES[i] for i in wrt])


ATTENTION = Declaration(
    "attention",
    "Each query's mean of the values, weighted by how well their keys fit it, in each"
    " head by itself; heads lie side by side in the last dimension. A query that may"
    " look at no key gets zeros and gives no gradient, as in torch.",
    _ATTENTION,
    _infer,
    each_row,
    _flops,
    _grad_flops,
    attrs=(
        Attr("heads", int, "how many heads lie side by side", default=1),
        CAUSAL,
        Attr(
            "scale",
            float | None,
            "what the products are multiplied by; null: 1 / √size",
            default=None,
        ),
    ),
    linear=lambda types, attrs: ((2,),),
    saves=lambda types, attrs: (0, 1, 2),
    residuals=lambda types, attrs: (probabilities(types[0], types[1], attrs["heads"]),),
    formula="out = softmax(scale · query · keyᵀ) · value, in each head",
    source="Vaswani et al. (2017)",
    cases=(
        Case(
            ("float32[batch, 20, 64]",) * 3,
            {"heads": 4, "causal": True},
        ),
        Case(
            (
                "float32[batch, 5, 64]",
                "float32[batch, 20, 64]",
                "float32[batch, 20, 32]",
                "int32[batch]",
            ),
        ),
    ),
    example="{name: seen, op: attention, in: [query, key, value], heads: 4,"
    " causal: true}",
)

DECLARATIONS = (ATTENTION,)
