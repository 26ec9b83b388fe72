"""attention: scaled dot-product attention with several heads."""

from __future__ import annotations

from collections.abc import Sequence

from placer.ops.common.checks import check_divides
from placer.ops.declaration import Attr, Attrs, Declaration, case, flag
from placer.ops.operand import (
    INTEGERS,
    Operand,
    Types,
    check_operand,
    operand_error,
    require_float,
    require_same_dtype,
)
from placer.ops.sequence.projections import SEQUENCES
from placer.place.types import BATCH, Dim, TensorType

MASK = Operand(
    "mask",
    "bool or integer, [batch, keys] or [batch, time, keys]: a query attends to"
    " keys where the mask is true or not 0; or integer, [batch]: a query attends"
    " to this many keys, from the first on",
    optional=True,
)
CAUSAL = flag("causal", "whether query t attends only to the first t + 1 keys")


def sequence_width(name: str, index: int, types: Types) -> int:
    """Return the last dimension of a sequence; raise OpError for another operand."""
    require_float(name, types, index)
    type_ = types[index]
    valid = type_.rank == 3 and type_.shape[-1] != BATCH
    check_operand(types, index, name, valid, "sequences [batch, time, width]")
    return int(type_.shape[-1])


def check_sequences(names: Sequence[str], types: Types) -> None:
    """Raise OpError unless queries, keys and values are sequences that fit together.

    Keys must have the queries' batch. Values must have the keys' batch and time.
    """
    for index, name in enumerate(names):
        sequence_width(name, index, types)
        first, leading = (0, 1) if name != "value" else (1, 2)
        actual, expected = types[index].shape[:leading], types[first].shape[:leading]
        if actual != expected:
            leads = f"[{', '.join(map(str, expected))}, …]"
            needed = f"'{name}' {leads} for '{names[first]}' {types[first]}"
            raise operand_error(types, index, name, needed)
    for index in range(len(names)):
        require_same_dtype(names, types, index)


def check_mask(index: int, types: Types, keys: TensorType) -> None:
    """Raise OpError unless operand `index` is a mask of queries (the first) and `keys`."""
    mask = types[index]
    rows, time = types[0].shape[:2]
    shapes: list[tuple[Dim, ...]] = [(rows, keys.shape[1]), (rows, time, keys.shape[1])]
    if mask.dtype in INTEGERS:
        shapes.append((rows,))
    else:
        valid = mask.dtype == "bool"
        check_operand(types, index, "mask", valid, "a mask of bool or integers")
    if mask.shape not in shapes:
        listed = " or ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)
        needed = f"'mask' {listed} for 'query' {types[0]}"
        raise operand_error(types, index, "mask", needed)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_sequences(SEQUENCES, types)
    query, key, value = types[:3]
    if key.shape[-1] != query.shape[-1]:
        needed = f"keys as wide as queries, 'query' is {query}"
        raise operand_error(types, 1, "key", needed)
    for name, type_ in zip(SEQUENCES, types, strict=False):
        width = int(type_.shape[-1])
        check_divides(attrs, "heads", width, f"'{name}' of {width}")
    if len(types) > 3:
        check_mask(3, types, key)
    return (TensorType(query.dtype, (*query.shape[:2], value.shape[-1])),)


def probabilities_type(query: TensorType, key: TensorType, heads: int) -> TensorType:
    """Return the type of the softmax probabilities, which the backward needs."""
    rows, time, _ = query.shape
    return TensorType(query.dtype, (rows, heads, time, key.shape[1]))


def _products(query: TensorType, key: TensorType, value: TensorType) -> tuple[int, int]:
    """Return the operations of the products with the keys and with the values."""
    per_query = 2 * int(key.shape[1])
    queries = query.numel() // int(query.shape[-1])
    return per_query * query.numel(), per_query * queries * int(value.shape[-1])


def _flops(types: Types, attrs: Attrs) -> int:
    """Count the scaling of the queries, a product, a softmax and another product."""
    query, key, value = types[:3]
    softmax = 5 + (len(types) > 3) + bool(attrs["causal"])
    scores = probabilities_type(query, key, attrs["heads"]).numel()
    return query.numel() + sum(_products(query, key, value)) + softmax * scores


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    query, key, value = types[:3]
    with_keys, with_values = _products(query, key, value)
    total = with_values if 2 in wrt else 0
    scored = sum(operand < 2 for operand in wrt)
    if scored:
        scores = probabilities_type(query, key, attrs["heads"]).numel()
        total += with_values + 4 * scores
    return total + scored * (with_keys + query.numel())


ATTENTION = Declaration(
    "attention",
    "Scaled dot-product attention. For each query, returns the mean of the"
    " values, weighted by the softmax of the scaled products of the query and the"
    " keys. The last dimension of each operand and of the result holds all heads,"
    " which are computed separately. A query without any visible key gives zeros"
    " and no gradient, as in PyTorch.",
    (
        Operand("query", "float, [batch, time, heads · size]"),
        Operand("key", "the same dtype, [batch, keys, heads · size]"),
        Operand("value", "the same dtype, [batch, keys, heads · value size]"),
        MASK,
    ),
    _infer,
    flops=_flops,
    grad_flops=_grad_flops,
    attrs=(
        Attr("heads", int, "the number of heads", default=1),
        CAUSAL,
        Attr(
            "scale",
            float | None,
            "the factor of the products; null: 1 / √size, where size is the size"
            " of a head",
        ),
    ),
    linear=lambda types, attrs: ((2,),),
    saves=lambda types, attrs: (0, 1, 2),
    residuals=lambda types, attrs: (
        probabilities_type(types[0], types[1], attrs["heads"]),
    ),
    formula="out = softmax(scale · query · keyᵀ) · value, in each head",
    source="Vaswani et al. (2017)",
    cases=(
        case(
            "float32[batch, 20, 64], float32[batch, 20, 64], float32[batch, 20, 64]",
            heads=4,
            causal=True,
        ),
        case(
            "float32[batch, 5, 64], float32[batch, 20, 64],"
            " float32[batch, 20, 32], int32[batch]"
        ),
    ),
)
