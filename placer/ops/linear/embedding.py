"""embedding: rows of a table, looked up by id."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.common.checks import is_static
from placer.ops.declaration import (
    Attrs,
    Declaration,
    LayerParameter,
    case,
    float_dtype,
    layer_size,
)
from placer.ops.operand import Operand, Types, check_operand
from placer.types import TensorType

_OPERANDS = (
    Operand("ids", "int32 or int64, any shape"),
    Operand("table", "float, [vocabulary, dimension]", parameter=True),
)


def _require_ids(types: Types) -> None:
    if types[0].dtype not in ("int32", "int64"):
        raise OpError(
            f"needs an int32 or int64 operand as 'ids', not {types[0]}", operand=0
        )


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _require_ids(types)
    ids, table = types
    valid = table.is_float and table.rank == 2 and is_static(table.shape)
    needed = "a float table [vocabulary, dimension]"
    check_operand(types, 1, "table", valid, needed)
    return (TensorType(table.dtype, (*ids.shape, table.shape[1])),)


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    _require_ids(types)
    size = attrs["size"]
    if len(size) != 2 or any(n < 1 for n in size):
        raise OpError(
            "needs a size [vocabulary, dimension] of two ints of at least 1,"
            f" not {list(size)}",
            attr="size",
        )
    table = TensorType(attrs["dtype"], tuple(size))
    return (LayerParameter("table", table, "uniform"),)


EMBEDDING = Declaration(
    "embedding",
    "Looks up the rows of a table by their indices. The result has the shape of `ids`"
    " followed by the dimension of the table. An id outside [0, vocabulary) gives a"
    " row of NaN, so that the loss shows the mistake, and no gradient. Creates the"
    " parameter `table`.",
    _OPERANDS,
    _infer,
    grad_flops=lambda types, attrs, wrt: _infer(types, attrs)[0].numel() * (1 in wrt),
    attrs=(
        layer_size(
            "size",
            list[int],
            "the shape of the table, [vocabulary, dimension]",
            [1000, 128],
        ),
        float_dtype("the dtype of the table", for_parameters=True),
    ),
    linear=lambda types, attrs: ((1,),),
    saves=lambda types, attrs: (0,),
    creates=_parameters,
    index_bounds=lambda types, attrs: {0: int(types[1].shape[0])},
    formula="out[i] = table[ids[i]]",
    source="the initial `table` is uniform on [-0.05, 0.05), as in Keras; it does not"
    " depend on the size of the vocabulary, so a table can grow",
    cases=(
        case("int32[batch], float32[1000, 128]"),
        case("int32[batch, 20], float32[1000, 128]"),
    ),
)
