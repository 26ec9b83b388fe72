"""cast: the same numbers in another dtype."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.common.checks import INTEGERS, arity
from placer.ops.declaration import Attr, Attrs, Case, Declaration, Operand, Types
from placer.types import FLOATS, TensorType

_ONE = (Operand("x", "float, integer or bool, any shape"),)

_DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "float16",
    "bfloat16",
    "float32",
    "float64",
)
_WIDER = {
    "float16": ("float16", "float32", "float64"),
    "bfloat16": ("bfloat16", "float32", "float64"),
    "float32": ("float32", "float64"),
    "float64": ("float64",),
}
"""The float dtypes that hold every number of one."""


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("cast", _ONE, types)
    if types[0].dtype not in FLOATS | INTEGERS | {"bool"}:
        raise OpError(f"cast needs numbers, 'x' is {types[0]}", operand=0)
    return (TensorType(attrs["dtype"], types[0].shape),)


def _linear(types: Types, attrs: Attrs) -> tuple[tuple[int, ...], ...]:
    # where it rounds, a sum of rounded parts is not the rounded sum
    return ((0,),) if attrs["dtype"] in _WIDER.get(types[0].dtype, ()) else ()


CAST = Declaration(
    "cast",
    "The same numbers in another dtype: a float becomes an integer towards 0, a bool 0"
    " or 1, and true is what is not 0. A gradient passes between floats only, in the"
    " dtype of x.",
    _ONE,
    _infer,
    lambda types, attrs: "rows",
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    attrs=(
        Attr(
            "dtype",
            str,
            "of the result; float64 needs the spec's precision to be that",
            required=True,
            choices=_DTYPES,
        ),
    ),
    linear=_linear,
    formula="out = x as dtype; dx = dy as the dtype of x",
    cases=(
        Case(("int32[batch, 8]",), {"dtype": "float32"}),
        Case(("bfloat16[batch, 8]",), {"dtype": "float32"}),
        Case(("float32[batch, 8]",), {"dtype": "bfloat16"}),
    ),
    example="{name: weight, op: cast, in: mask, dtype: float32}",
)

DECLARATIONS = (CAST,)
