"""How far two values of one shape are from each other, or how alike."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from placer.errors import OpError
from placer.ops.common.checks import (
    arity,
    need_float,
    need_same_dtype,
    normal_axis,
)
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Rule,
    Types,
)
from placer.ops.losses.loss import check_same_shape
from placer.ops.losses.loss_reduction import (
    REDUCE,
    counts,
    flops,
    grad_flops,
    reduced,
    rows,
)
from placer.types import BATCH, TensorType

_PAIR = (
    Operand("prediction", "float, any shape"),
    Operand("target", "the same dtype and shape"),
)
_CASES = (Case(("float32[batch, 1]", "float32[batch, 1]")),)


def _check_pair(kind: str, operands: tuple[Operand, ...], types: Types) -> None:
    """OpError unless both operands are floats of one type."""
    first, second = operands
    names = (first.name, second.name)
    arity(kind, operands, types)
    for index, name in enumerate(names):
        need_float(kind, name, types, index)
    need_same_dtype(kind, names, types)
    check_same_shape(kind, names, types)


def _infer_pair(kind: str) -> Callable[[Types, Attrs], tuple[TensorType, ...]]:
    def infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
        _check_pair(kind, _PAIR, types)
        return reduced(types[0].dtype, types[0].shape, attrs)

    return infer


MEAN_SQUARED_ERROR = Declaration(
    "mean_squared_error",
    "The square of the difference, element by element.",
    _PAIR,
    _infer_pair("mean_squared_error"),
    rows,
    flops(3),
    grad_flops(2, 2),
    attrs=(REDUCE,),
    residuals=lambda types, attrs: (types[0],),
    counts=counts,
    formula="loss = (prediction - target)²",
    cases=_CASES,
    example="{name: loss, op: mean_squared_error, in: [prediction, target]}",
)
L1_LOSS = Declaration(
    "l1_loss",
    "The magnitude of the difference, element by element: the mean absolute error as a"
    " loss. Where there is no difference there is no slope.",
    _PAIR,
    _infer_pair("l1_loss"),
    rows,
    flops(2),
    grad_flops(1, 1),
    attrs=(REDUCE,),
    residuals=lambda types, attrs: (TensorType("int8", types[0].shape),),
    counts=counts,
    formula="loss = |prediction - target|",
    cases=_CASES,
    example="{name: loss, op: l1_loss, in: [prediction, target]}",
)


def _infer_huber(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    result = _infer_pair("huber")(types, attrs)
    if not (isfinite(attrs["delta"]) and attrs["delta"] > 0):
        raise OpError(
            f"huber needs a finite delta above 0, not {attrs['delta']}", attr="delta"
        )
    return result


HUBER = Declaration(
    "huber",
    "Half the square of a difference up to `delta`, and a line beyond it.",
    _PAIR,
    _infer_huber,
    rows,
    flops(6),
    grad_flops(1, 1),
    attrs=(
        REDUCE,
        Attr("delta", float, "the difference where the line begins", default=1.0),
    ),
    residuals=lambda types, attrs: (types[0],),
    counts=counts,
    formula="loss = c · (d - c / 2), d = prediction - target,"
    " c = min(max(d, -delta), delta); dprediction = c",
    source="Huber (1964), as in PyTorch and Keras",
    cases=_CASES,
    example="{name: loss, op: huber, in: [prediction, target], delta: 0.5}",
)

_LOGARITHMS = (
    Operand("log_prediction", "float, [batch, …, classes]: logarithms, of log_softmax"),
    Operand("target", "the same dtype and shape: probabilities"),
)


def _infer_divergence(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check_pair("kl_div", _LOGARITHMS, types)
    prediction = types[0]
    if prediction.rank == 0 or prediction.shape[-1] == BATCH:
        raise OpError(
            "kl_div sums over the classes, the last dimension:"
            f" 'log_prediction' is {prediction}",
            operand=0,
        )
    return reduced(prediction.dtype, prediction.shape[:-1], attrs)


KL_DIV = Declaration(
    "kl_div",
    "The Kullback-Leibler divergence of a target distribution from a predicted one,"
    " summed over the last dimension, so that the mean is over all others: of [batch,"
    " classes] it is PyTorch's `batchmean`. A class of target 0 counts nothing.",
    _LOGARITHMS,
    _infer_divergence,
    rows,
    flops(4),
    grad_flops(2, 4),
    attrs=(REDUCE,),
    saves=lambda types, attrs: (0, 1),
    counts=counts,
    formula="loss = Σ target · (log target - log_prediction);"
    " dlog_prediction = -target;"
    " dtarget = log target + 1 - log_prediction, without log target + 1 where it is 0",
    source="operands as PyTorch's kl_div and optax's kl_divergence have them",
    cases=(Case(("float32[batch, 10]", "float32[batch, 10]")),),
    example="{name: loss, op: kl_div, in: [log_probabilities, teacher]}",
)

_VECTORS = (
    Operand("a", "float, at least one dimension"),
    Operand("b", "the same dtype and shape"),
)


def _infer_cosine(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    kind = "cosine_similarity"
    _check_pair(kind, _VECTORS, types)
    shape = types[0].shape
    if not shape:
        raise OpError(f"{kind} needs a dimension, 'a' is {types[0]}", operand=0)
    axis = normal_axis(kind, attrs["axis"], len(shape))
    if not (isfinite(attrs["epsilon"]) and attrs["epsilon"] > 0):
        raise OpError(
            f"{kind} needs a finite epsilon above 0, not {attrs['epsilon']}",
            attr="epsilon",
        )
    return (TensorType(types[0].dtype, (*shape[:axis], *shape[axis + 1 :])),)


def _rows_cosine(types: Types, attrs: Attrs) -> Rule:
    axis = normal_axis("cosine_similarity", attrs["axis"], types[0].rank)
    return "whole" if axis == 0 else "rows"


COSINE_SIMILARITY = Declaration(
    "cosine_similarity",
    "The cosine of the angle between vectors along an axis, which goes. A vector shorter"
    " than `epsilon` counts as that long, so that one of zeros gives 0 and a finite"
    " slope. For a loss take `negative` and `reduce_mean`.",
    _VECTORS,
    _infer_cosine,
    _rows_cosine,
    flops(8),
    grad_flops(6, 6),
    attrs=(
        Attr("axis", int, "along which the vectors lie", default=-1),
        Attr(
            "epsilon",
            float,
            "the least length, at least 2^-14 in float16",
            default=1e-8,
        ),
    ),
    saves=lambda types, attrs: (0, 1),
    residuals=lambda types, attrs: _infer_cosine(types, attrs) * 3,
    formula="out = Σ u · v, u = a / max(|a|, epsilon), v = b / max(|b|, epsilon);"
    " da = dy · (v - out · u) / |a|",
    source="PyTorch's cosine_similarity, along the last axis unless told otherwise",
    cases=(
        Case(("float32[batch, 64]", "float32[batch, 64]")),
        Case(("float32[batch, 64]", "float32[batch, 64]"), {"axis": 0}),
    ),
    example="{name: similarity, op: cosine_similarity, in: [query, document]}",
)

DECLARATIONS = (MEAN_SQUARED_ERROR, L1_LOSS, HUBER, KL_DIV, COSINE_SIMILARITY)
