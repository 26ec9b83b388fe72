"""position_embedding and positional_encoding: a sequence whose steps know their places."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.common.checks import arity, each_row, need_float
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    LayerParameter,
    Operand,
    Types,
)
from placer.types import BATCH, TensorType

_SEQUENCE = Operand("x", "float, [batch, length, size]")
_LEARNED = (
    _SEQUENCE,
    Operand("table", "the same dtype, [length, size]", parameter=True),
)


def _steps(kind: str, types: Types) -> TensorType:
    """One row of x; OpError when x is no sequence."""
    x = types[0]
    need_float(kind, "x", types, 0)
    if x.rank != 3 or BATCH in x.shape[1:]:
        raise OpError(
            f"{kind} needs a sequence [batch, length, size], 'x' is {x}", operand=0
        )
    return TensorType(x.dtype, x.shape[1:])


def _infer_learned(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    kind = "position_embedding"
    arity(kind, _LEARNED, types)
    x, table = types
    wanted = _steps(kind, types)
    if table != wanted:
        raise OpError(
            f"{kind} needs 'table' {wanted} for 'x' {x}, 'table' is {table}", operand=1
        )
    return (x,)


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    if len(types) != 1:
        raise OpError(
            "position_embedding needs 1 operand (x) beside its parameters,"
            f" {len(types)} given"
        )
    table = _steps("position_embedding", types)
    return (LayerParameter("table", table, {"normal": 0.02}),)


POSITION_EMBEDDING = Declaration(
    "position_embedding",
    "A sequence plus a learned vector for each of its steps; it makes its parameter"
    " `table`.",
    _LEARNED,
    _infer_learned,
    each_row,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * (1 in wrt),
    linear=lambda types, attrs: ((0, 1),),
    parameters=_parameters,
    formula="out[i, t] = x[i, t] + table[t]",
    source="Gehring et al. (2017); `table` begins normal with deviation 0.02, as in"
    " BERT and GPT-2",
    cases=(Case(("float32[batch, 20, 64]", "float32[20, 64]")),),
    example="{name: placed, op: position_embedding, in: tokens}",
)


def _infer_encoding(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    kind = "positional_encoding"
    arity(kind, (_SEQUENCE,), types)
    _steps(kind, types)
    if not attrs["base"] > 1:
        raise OpError(f"{kind} needs a base above 1, not {attrs['base']}", attr="base")
    return (types[0],)


POSITION_ENCODING = Declaration(
    "positional_encoding",
    "A sequence plus sines and cosines of its steps, of wavelengths from 2π to about"
    " 2π · base.",
    (_SEQUENCE,),
    _infer_encoding,
    each_row,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: 0,
    attrs=(
        Attr("base", float, "how much longer the longest wave is", default=10000.0),
    ),
    formula="out[i, t, 2k] = x[i, t, 2k] + sin(t / base^(2k / size)), and at 2k + 1 with"
    " cos",
    source="Vaswani et al. (2017)",
    cases=(Case(("float32[batch, 20, 64]",)),),
    example="{name: placed, op: positional_encoding, in: tokens}",
)

DECLARATIONS = (POSITION_EMBEDDING, POSITION_ENCODING)
