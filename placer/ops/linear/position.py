"""position_embedding and positional_encoding: add positions to a sequence."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.common.checks import check_attr
from placer.ops.common.roles import require_shapes
from placer.ops.declaration import Attr, Attrs, Declaration, LayerParameter, case
from placer.ops.operand import Operand, Types
from placer.place.types import BATCH, TensorType
from placer.plan.settings.training.initializers import Initializer

_SEQUENCE = Operand("x", "float, [batch, length, size]", dtype="float")
_LEARNED = (
    _SEQUENCE,
    Operand("table", "the same dtype, [length, size]", parameter=True),
)


def _row_type(types: Types) -> TensorType:
    """Return the type of one row of x; raise OpError if x is not a sequence."""
    x = types[0]
    if x.rank != 3 or BATCH in x.shape[1:]:
        raise OpError(f"needs a sequence [batch, length, size], 'x' is {x}", operand=0)
    return TensorType(x.dtype, x.shape[1:])


def _infer_learned(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    shapes = {"table": _row_type(types).shape}
    require_shapes(("x", "table"), types, shapes)
    return (types[0],)


def _parameters(types: Types, attrs: Attrs) -> tuple[LayerParameter, ...]:
    table = _row_type(types)
    return (LayerParameter("table", table, Initializer(normal=0.02)),)


POSITION_EMBEDDING = Declaration(
    "position_embedding",
    "Adds a learned vector to each position of a sequence. Creates the parameter"
    " `table`.",
    _LEARNED,
    _infer_learned,
    flops=lambda types, attrs: types[0].numel(),
    grad_flops=lambda types, attrs, wrt: types[0].numel() * (1 in wrt),
    linear=lambda types, attrs: ((0, 1),),
    creates=_parameters,
    formula="out[i, t] = x[i, t] + table[t]",
    source="Gehring et al. (2017); the initial `table` is normal with a standard"
    " deviation of 0.02, as in BERT and GPT-2",
    cases=(case("float32[batch, 20, 64], float32[20, 64]"),),
)


def _infer_encoding(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _row_type(types)
    check_attr(attrs, "base", attrs["base"] > 1, "a base above 1")
    return (types[0],)


POSITION_ENCODING = Declaration(
    "positional_encoding",
    "Adds sines and cosines of the position to a sequence. The wavelengths range"
    " from 2π to about 2π · base.",
    (_SEQUENCE,),
    _infer_encoding,
    flops=lambda types, attrs: types[0].numel(),
    attrs=(
        Attr(
            "base",
            float,
            "the ratio of the longest wavelength to the shortest, above 1",
            default=10000.0,
        ),
    ),
    formula="out[i, t, 2k] = x[i, t, 2k] + sin(t / base^(2k / size));"
    " out[i, t, 2k + 1] = x[i, t, 2k + 1] + cos(t / base^(2k / size))",
    source="Vaswani et al. (2017)",
    cases=(case("float32[batch, 20, 64]"),),
)
