"""relu, tanh, sigmoid, softmax: the nonlinearities, alone and inside fc."""

from __future__ import annotations

from collections.abc import Callable

from placer.errors import OpError
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
from placer.ops.declarations.checks import arity, each_row, need_float, normal_axis

ACTIVATIONS = ("none", "relu", "tanh", "sigmoid", "softmax")

FORWARD_FLOPS = {"none": 0, "relu": 1, "tanh": 1, "sigmoid": 1, "softmax": 5}
"""Operations per element; softmax: maximum, subtract, exp, sum, divide."""

BACKWARD_FLOPS = {"none": 0, "relu": 1, "tanh": 4, "sigmoid": 3, "softmax": 4}

_ONE = (Operand("x", "float, any shape"),)


def kept(activation: str, out: TensorType) -> tuple[TensorType, ...]:
    """What the backward of an activation needs: relu a mask, the others the result."""
    if activation == "none":
        return ()
    return (TensorType("bool", out.shape) if activation == "relu" else out,)


def _infer(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        arity(kind, _ONE, types)
        need_float(kind, "x", types, 0)
        return (types[0],)

    return infer


def _elementwise(kind: str, doc: str, formula: str) -> Declaration:
    return Declaration(
        kind,
        doc,
        _ONE,
        _infer(kind),
        each_row,
        lambda types, attrs: FORWARD_FLOPS[kind] * types[0].numel(),
        lambda types, attrs, wrt: BACKWARD_FLOPS[kind] * types[0].numel() * len(wrt),
        residuals=lambda types, attrs: kept(kind, types[0]),
        formula=formula,
        cases=(Case(("float32[batch, 8]",)),),
        example=f"{{name: h, op: {kind}, in: x}}",
    )


RELU = _elementwise(
    "relu",
    "The positive part. Its derivative at 0 is 0.",
    "out = max(x, 0); dx = dy where x > 0, else 0",
)
TANH = _elementwise(
    "tanh", "The hyperbolic tangent.", "out = tanh x; dx = dy · (1 - out²)"
)
SIGMOID = _elementwise(
    "sigmoid",
    "The logistic function.",
    "out = 1 / (1 + exp(-x)); dx = dy · out · (1 - out)",
)


def _infer_softmax(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("softmax", _ONE, types)
    need_float("softmax", "x", types, 0)
    if types[0].rank == 0:
        raise OpError(f"softmax needs a dimension, 'x' is {types[0]}", operand=0)
    normal_axis("softmax", attrs["axis"], types[0].rank)
    return (types[0],)


def _rows_softmax(types: Types, attrs: Attrs) -> Rule:
    axis = normal_axis("softmax", attrs["axis"], types[0].rank)
    return "whole" if axis == 0 else "rows"


SOFTMAX = Declaration(
    "softmax",
    "Positive values that sum to 1 along an axis; the maximum is taken off first, so"
    " that no exponential overflows.",
    (Operand("x", "float, at least one dimension"),),
    _infer_softmax,
    _rows_softmax,
    lambda types, attrs: FORWARD_FLOPS["softmax"] * types[0].numel(),
    lambda types, attrs, wrt: BACKWARD_FLOPS["softmax"] * types[0].numel() * len(wrt),
    attrs=(Attr("axis", int, "the axis that sums to 1", default=-1),),
    residuals=lambda types, attrs: kept("softmax", types[0]),
    formula="out = exp(x) / Σ exp(x); dx = out · (dy - Σ dy · out)",
    cases=(
        Case(("float32[batch, 8]",)),
        Case(("float32[batch, 8]",), {"axis": 0}),
    ),
    example="{name: probabilities, op: softmax, in: logits}",
)

DECLARATIONS = (RELU, TANH, SIGMOID, SOFTMAX)
