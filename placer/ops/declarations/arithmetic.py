"""add, sub, mul, div, scale, sqrt: elementwise, broadcasting as numpy does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placer.graph.types import TensorType
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Rule,
    Types,
)
from placer.ops.declarations.checks import (
    aligned_rows,
    arity,
    broadcast,
    each_row,
    need_float,
    need_same_dtype,
)

_PAIR = (Operand("a", "float, any shape"), Operand("b", "float, broadcast to a"))
_ONE = (Operand("x", "float, any shape"),)
_NAMES = ("a", "b")


def _infer_pair(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        arity(kind, _PAIR, types)
        for index, name in enumerate(_NAMES):
            need_float(kind, name, types, index)
        need_same_dtype(kind, _NAMES, types)
        return (TensorType(types[0].dtype, broadcast(kind, _NAMES, types)),)

    return infer


def _infer_one(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        arity(kind, _ONE, types)
        need_float(kind, "x", types, 0)
        return (types[0],)

    return infer


def _rows(types: Types, attrs: Attrs) -> Rule:
    return aligned_rows(types, broadcast("elementwise", _NAMES, types))


def _flops(types: Types, attrs: Attrs) -> int:
    return TensorType("float32", broadcast("elementwise", _NAMES, types)).numel()


def _grad_flops(per_operand: tuple[int, int]) -> Callable[..., int]:
    """Products per result element for each operand, and the sums of broadcasting."""

    def grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
        out = _flops(types, attrs)
        summed = sum(out for i in wrt if types[i].numel() != out)
        return summed + out * sum(per_operand[i] for i in wrt)

    return grad_flops


_CASES = (
    Case(("float32[batch, 8]", "float32[batch, 8]")),
    Case(("float32[batch, 8]", "float32[8]")),
    Case(("float32[batch, 8]", "float32[batch, 1]")),
    Case(("float32[batch, 1]", "float32[batch]")),
)

ADD = Declaration(
    "add",
    "The sum of two values.",
    _PAIR,
    _infer_pair("add"),
    _rows,
    _flops,
    _grad_flops((0, 0)),
    linear=lambda types, attrs: ((0, 1),),
    formula="out = a + b",
    cases=_CASES,
    example="{name: total, op: add, in: [h1, h2]}",
)
SUB = Declaration(
    "sub",
    "The difference of two values.",
    _PAIR,
    _infer_pair("sub"),
    _rows,
    _flops,
    _grad_flops((0, 1)),
    linear=lambda types, attrs: ((0, 1),),
    formula="out = a - b",
    cases=_CASES[:1],
    example="{name: error, op: sub, in: [prediction, target]}",
)
MUL = Declaration(
    "mul",
    "The elementwise product of two values.",
    _PAIR,
    _infer_pair("mul"),
    _rows,
    _flops,
    _grad_flops((1, 1)),
    linear=lambda types, attrs: ((0,), (1,)),
    saves=lambda types, attrs: (0, 1),
    formula="out = a · b",
    cases=_CASES[:2],
    example="{name: gated, op: mul, in: [h, gate]}",
)
DIV = Declaration(
    "div",
    "The elementwise quotient of two values; x / 0 is inf or NaN as IEEE 754 has it.",
    _PAIR,
    _infer_pair("div"),
    _rows,
    _flops,
    _grad_flops((1, 4)),
    linear=lambda types, attrs: ((0,),),
    saves=lambda types, attrs: (0, 1),
    formula="out = a / b; da = dy / b; db = -(dy / b) · (a / b)",
    cases=_CASES[:2],
    example="{name: share, op: div, in: [part, whole]}",
)
SCALE = Declaration(
    "scale",
    "A value times a number, plus a number.",
    _ONE,
    _infer_one("scale"),
    each_row,
    lambda types, attrs: types[0].numel() * (2 if attrs["bias"] else 1),
    lambda types, attrs, wrt: types[0].numel() * len(wrt),
    attrs=(
        Attr("factor", float, "what x is multiplied by", required=True),
        Attr("bias", float, "what is added afterwards", default=0.0),
    ),
    linear=lambda types, attrs: () if attrs["bias"] else ((0,),),
    formula="out = factor · x + bias",
    cases=(
        Case(("float32[batch, 8]",), {"factor": 0.5}),
        Case(("float32[batch, 8]",), {"factor": 2.0, "bias": -1.0}),
    ),
    example="{name: penalty, op: scale, in: norm, factor: 1.0e-4}",
)
SQRT = Declaration(
    "sqrt",
    "The square root, element by element. Its derivative at 0 is inf, as JAX has it.",
    _ONE,
    _infer_one("sqrt"),
    each_row,
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: 2 * types[0].numel() * len(wrt),
    residuals=lambda types, attrs: (types[0],),
    formula="out = √x; dx = dy / (2 · out)",
    cases=(Case(("float32[batch]",)),),
    example="{name: rmse, op: sqrt, in: mse}",
)

DECLARATIONS = (ADD, SUB, MUL, DIV, SCALE, SQRT)
