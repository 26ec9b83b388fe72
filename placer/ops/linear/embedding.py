"""embedding: rows of a table, looked up by id."""

from __future__ import annotations

from placer.config.sparse import PARTITIONS
from placer.config.sparse_keys import KEYS as SPARSE_KEYS
from placer.config.sparse_keys import Admit, ForgetKeys, ScoreKeys, read_settings
from placer.errors import OpError
from placer.ops.common.checks import is_static
from placer.ops.declaration import (
    Attr,
    Attrs,
    Declaration,
    LayerParameter,
    case,
    flag,
    float_dtype,
)
from placer.ops.operand import Operand, Types, check_operand
from placer.types import KEYS, TensorType

_OPERANDS = (
    Operand("ids", "int32 or int64, any shape; also uint32 or uint64 if sparse"),
    Operand("table", "float, [vocabulary, dimension]", parameter=True),
)


_IDS = ("int32", "int64")
_KEYS = (*_IDS, "uint32", "uint64")


def _require_ids(types: Types, dtypes: tuple[str, ...]) -> None:
    if types[0].dtype not in dtypes:
        names = f"{', '.join(dtypes[:-1])} or {dtypes[-1]}"
        raise OpError(f"needs an {names} operand as 'ids', not {types[0]}", operand=0)


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    ids, table = types
    _require_ids(types, _KEYS if table.is_keyed else _IDS)
    valid = table.is_float and table.rank == 2 and is_static(table.shape[1:])
    needed = "a float table [vocabulary, dimension]"
    check_operand(types, 1, "table", valid, needed)
    return (TensorType(table.dtype, (*ids.shape, table.shape[1])),)


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    if attrs["sparse"]:
        return (_sparse_table(types, attrs),)
    _require_ids(types, _IDS)
    for key in ("dim", "rows", *SPARSE_KEYS):
        if attrs[key] != _DEFAULTS[key]:
            hint = "write sparse: true, or leave it out"
            raise OpError(f"has '{key}' only if sparse", attr=key, hint=hint)
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


def _sparse_table(types: Types, attrs: Attrs) -> LayerParameter:
    """Return the table with a row for each key. PaddlePaddle's form is accepted, too:
    `size: [rows, dim]`, whose rows may be 0."""
    _require_ids(types, _KEYS)
    rows, dim, size = attrs["rows"], attrs["dim"], attrs["size"]
    if size is not None:
        if dim is not None or len(size) != 2:
            raise OpError("needs either 'dim' or a size [rows, dim]", attr="size")
        rows, dim = rows if rows is not None else size[0] or None, size[1]
    if dim is None:
        raise OpError("needs 'dim', the columns of a row", hint="write dim: 16")
    if dim < 1:
        raise OpError(f"needs a 'dim' of at least 1, not {dim}", attr="dim")
    if rows is not None and rows < 1:
        raise OpError(f"needs 'rows' of at least 1, not {rows}", attr="rows")
    table = TensorType(attrs["dtype"], (KEYS, dim))
    return LayerParameter(
        "table", table, "uniform", sparse=read_settings(attrs), rows=rows
    )


def _sparse(
    name: str,
    type_: object,
    doc: str,
    default: object = None,
    choices: tuple[str, ...] = (),
) -> Attr:
    return Attr(name, type_, doc, default, choices=choices, for_parameters=True)


_SPARSE = (
    flag("sparse", "whether the table has a row for each key", for_parameters=True),
    _sparse("dim", int | None, "the columns of a sparse table"),
    _sparse("rows", int | None, "how many rows a sparse table is expected to have"),
    _sparse("partitions", int, "the partitions of a sparse table", PARTITIONS),
    _sparse("admit", Admit, "which keys get a row", "always"),
    _sparse("forget", ForgetKeys | None, "which keys lose it"),
    _sparse("score", ScoreKeys | None, "the score of keys"),
    _sparse("capacity", int | None, "the most rows of a sparse table"),
    _sparse("evict", str, "which rows a full table loses", "lru", ("lru", "lfu")),
    _sparse("default", float, "what a key without a row reads", 0.0),
    _sparse("bounds", list[float] | None, "the least and greatest value of an element"),
)
_DEFAULTS = {attr.name: attr.default for attr in _SPARSE}

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
        Attr(
            "size",
            list[int] | None,
            "the shape of the table, [vocabulary, dimension]",
            for_parameters=True,
            example=[1000, 128],
        ),
        float_dtype("the dtype of the table", for_parameters=True),
        *_SPARSE,
    ),
    linear=lambda types, attrs: ((1,),),
    saves=lambda types, attrs: (0,),
    creates=_parameters,
    index_bounds=lambda types, attrs: (
        {} if types[1].is_keyed else {0: int(types[1].shape[0])}
    ),
    formula="out[i] = table[ids[i]]",
    source="the initial `table` is uniform on [-0.05, 0.05), as in Keras; it does not"
    " depend on the size of the vocabulary, so a table can grow",
    cases=(
        case("int32[batch], float32[1000, 128]"),
        case("int32[batch, 20], float32[1000, 128]"),
    ),
)
