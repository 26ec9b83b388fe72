"""embedding: rows of a dense table, looked up by id."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.common.checks import arity, each_row, ints
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    LayerParameter,
    Operand,
    Types,
)
from placer.types import TensorType

_OPERANDS = (
    Operand("ids", "int32 or int64, any shape"),
    Operand("table", "float, [vocabulary, dimension]", parameter=True),
)


def _need_ids(types: Types) -> None:
    if types[0].dtype not in ("int32", "int64"):
        raise OpError(
            f"embedding needs an int32 or int64 operand as 'ids', not {types[0]}",
            operand=0,
        )


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("embedding", _OPERANDS, types)
    _need_ids(types)
    ids, table = types
    if not table.is_float or table.rank != 2 or not ints(table.shape):
        raise OpError(
            f"embedding needs a float table [vocabulary, dimension], 'table' is {table}",
            operand=1,
        )
    return (TensorType(table.dtype, (*ids.shape, table.shape[1])),)


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    if len(types) != 1:
        raise OpError(
            f"embedding needs 1 operand (ids) beside its parameters, {len(types)} given"
        )
    _need_ids(types)
    size = attrs["size"]
    if len(size) != 2 or any(n < 1 for n in size):
        raise OpError(
            f"embedding needs a size [vocabulary, dimension] of two ints from 1 on,"
            f" not {list(size)}",
            attr="size",
        )
    table = TensorType(attrs["dtype"], tuple(size))
    return (LayerParameter("table", table, "uniform"),)


EMBEDDING = Declaration(
    "embedding",
    "The rows of a table that `ids` name; it makes its parameter `table`. An id outside"
    " the vocabulary, negative ones too, gives a row of NaN and no gradient, so that the"
    " loss shows it.",
    _OPERANDS,
    _infer,
    each_row,
    lambda types, attrs: 0,
    lambda types, attrs, wrt: _infer(types, attrs)[0].numel() * (1 in wrt),
    attrs=(
        Attr(
            "size",
            list[int],
            "[vocabulary, dimension] of the table",
            required=True,
            build=True,
        ),
        Attr(
            "dtype",
            str,
            "of the table",
            default="float32",
            choices=("float16", "bfloat16", "float32", "float64"),
            build=True,
        ),
    ),
    linear=lambda types, attrs: ((1,),),
    saves=lambda types, attrs: (0,),
    parameters=_parameters,
    indexes=lambda types, attrs: {0: int(types[1].shape[0])},
    formula="out[i] = table[ids[i]]",
    source="`table` begins uniform on ±0.05 as in Keras: the vocabulary's size does not"
    " enter, so that it is the same for a table that grows",
    cases=(
        Case(("int32[batch]", "float32[1000, 128]")),
        Case(("int32[batch, 20]", "float32[1000, 128]")),
    ),
    example="{name: emb, op: embedding, in: ids, size: [1000, 128]}",
)

DECLARATIONS = (EMBEDDING,)
