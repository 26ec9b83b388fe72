"""embedding: looks up rows of a table by id, and optionally sums or averages them."""

from __future__ import annotations

from collections.abc import Sequence

from placer.errors import OpError
from placer.ops.common.checks import is_in_range, is_static
from placer.ops.declaration import (
    Attr,
    Attrs,
    Declaration,
    IndexBound,
    LayerParameter,
    case,
    choice,
    float_dtype,
)
from placer.ops.linear.sparse_rows import ATTRS, check_dense, sparse_table
from placer.ops.operand import (
    Operand,
    Types,
    check_arity,
    check_layer,
    check_operand,
    check_operands,
)
from placer.place.types import BATCH, TensorType

_OPERANDS = (
    Operand(
        "ids",
        "int32 or int64, any shape; with a combiner, […, n]. A sparse table also"
        " takes uint32 and uint64, and needs the batch as first dimension",
    ),
    Operand(
        "weights",
        "float, the shape of `ids`, only with a combiner: a factor for each row,"
        " 1 by default; it has no gradient",
        optional=True,
        dtype="float",
        same="shape",
    ),
    Operand("table", "float, [vocabulary, dimension]", parameter=True),
)


def _present(types: Types) -> tuple[Operand, ...]:
    return tuple(o for o in _OPERANDS if len(types) == 3 or not o.optional)


_IDS = ("int32", "int64")
_KEYS = (*_IDS, "uint32", "uint64")


def _check_ids(types: Types, attrs: Attrs, weighted: bool, sparse: bool) -> None:
    """Raise OpError unless the ids and the weights fit the attributes."""
    ids, padding = types[0], attrs["padding"]
    dtypes = _KEYS if sparse else _IDS
    if ids.dtype not in dtypes:
        *first, last = dtypes
        listed = f"{', '.join(first)} or {last}"
        message = f"needs an {listed} operand as 'ids', not {ids}"
        hint = "write sparse: true for 64-bit keys" if not sparse else None
        raise OpError(message, operand=0, hint=hint)
    if sparse and not ids.has_rows:
        raise OpError(
            f"needs a batch of keys as 'ids' of a sparse table, not {ids}",
            operand=0,
            hint="make the batch the first dimension",
        )
    if padding is not None and not is_in_range(ids.dtype, padding):
        message = f"has ids of {ids.dtype}, which cannot be the padding {padding}"
        raise OpError(message, attr="padding")
    if attrs["combiner"] == "none":
        if weighted:
            hint = "write combiner: sum, mean or sqrtn"
            raise OpError("needs a combiner for its weights", operand=1, hint=hint)
    elif not ids.shape:
        raise OpError(
            f"combines the last dimension, but 'ids' {ids} has none", operand=0
        )
    elif ids.shape[-1] == BATCH:
        raise OpError(
            f"combines the last dimension, which is the batch in 'ids' {ids}", operand=0
        )


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_arity(_OPERANDS, types)
    ids, table = types[0], types[-1]
    _check_ids(types, attrs, len(types) == 3, table.is_keyed)
    check_operands(_present(types), types)
    valid = (
        table.is_float
        and table.rank == 2
        and (is_static(table.shape) or table.is_keyed)
    )
    needed = "a float table [vocabulary, dimension]"
    check_operand(types, len(types) - 1, "table", valid, needed)
    leading = ids.shape if attrs["combiner"] == "none" else ids.shape[:-1]
    return (TensorType(table.dtype, (*leading, table.shape[1])),)


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    check_layer(_OPERANDS, types)
    _check_ids(types, attrs, len(types) == 2, attrs["sparse"])
    if attrs["sparse"]:
        return (sparse_table(attrs),)
    check_dense(attrs)
    size = attrs["size"]
    if size is None:
        hint = "write size: [1000, 128], or sparse: true and dim: 128"
        raise OpError("needs a 'size'", hint=hint)
    if len(size) != 2 or any(n < 1 for n in size):
        raise OpError(
            "needs a size [vocabulary, dimension] of two ints of at least 1,"
            f" not {list(size)}",
            attr="size",
        )
    table = TensorType(attrs["dtype"], tuple(size))
    return (LayerParameter("table", table, "uniform"),)


def _counts(types: Types, attrs: Attrs) -> tuple[int, int]:
    """Return the number of elements of all rows, and the number of divisions of a mean."""
    rows = types[0].numel() * int(types[-1].shape[1])
    divides = attrs["combiner"] in ("mean", "sqrtn")
    return rows, _infer(types, attrs)[0].numel() * divides


def _flops(types: Types, attrs: Attrs) -> int:
    if attrs["combiner"] == "none":
        return 0
    rows, divisions = _counts(types, attrs)
    return rows * (1 + (len(types) == 3)) + divisions


def _grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    """Count one addition per element of a row, and the products of a mean."""
    if len(types) - 1 not in wrt:
        return 0
    rows, divisions = _counts(types, attrs)
    return rows * (1 + (len(types) == 3)) + divisions


def _index_bounds(types: Types, attrs: Attrs) -> dict[int, IndexBound]:
    if types[-1].is_keyed:
        return {}
    return {0: IndexBound(int(types[-1].shape[0]), attrs["padding"])}


EMBEDDING = Declaration(
    "embedding",
    "Looks up rows of a table by id. The result has the shape of `ids` followed"
    " by the dimension of the table. With a combiner, the rows along the last"
    " dimension of `ids` are summed or averaged, weighted by `weights`; the"
    " result is 0 if there are no rows or the divisor is 0. An id equal to"
    " `padding` is skipped by a combiner, with its weight. Without a combiner, it"
    " gives a row of zeros. Padding has no gradient. Any other id outside [0,"
    " vocabulary) gives a row of NaN, so that the loss shows the mistake, and no"
    " gradient. Creates the parameter `table`.",
    _OPERANDS,
    _infer,
    flops=_flops,
    grad_flops=_grad_flops,
    attrs=(
        Attr(
            "size",
            list[int] | None,
            "the shape of the table, [vocabulary, dimension]",
            for_parameters=True,
            example=[1000, 128],
        ),
        float_dtype("the dtype of the table", for_parameters=True),
        choice(
            "combiner",
            "how to combine the rows along the last dimension of `ids`. `none`:"
            " keep them; `sum`: the weighted sum; `mean`: the sum divided by the"
            " sum of the weights; `sqrtn`: the sum divided by the root of the sum"
            " of the squared weights",
            ("none", "sum", "mean", "sqrtn"),
        ),
        Attr(
            "padding",
            int | None,
            "an id that means no row; it may be outside [0, vocabulary)",
        ),
        *ATTRS,
    ),
    operand_names=lambda types: tuple(o.name for o in _present(types)),
    linear=lambda types, attrs: ((len(types) - 1,),),
    saves=lambda types, attrs: tuple(range(len(types) - 1)),
    creates=_parameters,
    index_bounds=_index_bounds,
    constant_operands=lambda types, attrs: (1,) if len(types) == 3 else (),
    formula="out[i] = table[ids[i]]; with a combiner,"
    " out[i] = Σⱼ weights[i, j] · table[ids[i, j]] / divisor, where divisor is 1,"
    " Σⱼ weights[i, j] or √Σⱼ weights[i, j]²",
    source="the initial `table` is uniform on [-0.05, 0.05), as in Keras, whatever the"
    " size of the vocabulary, so that a table can grow. Combiners and weights as"
    " in TensorFlow's embedding_lookup_sparse; `padding` is PaddlePaddle's"
    " padding_idx",
    cases=(
        case("int32[batch], float32[1000, 128]"),
        case("int32[batch, 20], float32[1000, 128]"),
        case("int32[batch, 20], float32[1000, 128]", combiner="sum", padding=0),
        case(
            "int32[batch, 20], float32[batch, 20], float32[1000, 128]", combiner="mean"
        ),
        case("int32[batch, 4, 20], float32[1000, 128]", combiner="sqrtn", padding=-1),
    ),
)
