"""Losses of a prediction and a target of the same shape, and cosine_similarity."""

from __future__ import annotations

from placer.errors import OpError
from placer.ops.common.checks import (
    check_positive,
    normalize_axis,
    rule_along_axis,
    without,
)
from placer.ops.common.costs import flops_per_element, grad_flops_per_element
from placer.ops.declaration import Attr, Attrs, Declaration, case
from placer.ops.losses.loss_reduction import (
    PAIR,
    REDUCE,
    declare_loss,
    elementwise_type,
    reduced_type,
)
from placer.ops.operand import Operand, Types, check_operand
from placer.place.types import BATCH, TensorType

_CASES = (case("float32[batch, 1], float32[batch, 1]"),)

MEAN_SQUARED_ERROR = declare_loss(
    "mean_squared_error",
    "The squared difference of a prediction and a target, element by element."
    " With `reduce: mean` it is the mean squared error.",
    PAIR,
    elementwise_type,
    flops=flops_per_element(3),
    grad_flops=grad_flops_per_element(2, 2),
    attrs=(REDUCE,),
    residuals=lambda types, attrs: (types[0],),
    formula="loss = (prediction - target)²",
    cases=_CASES,
)
L1_LOSS = declare_loss(
    "l1_loss",
    "The absolute difference of a prediction and a target, element by element."
    " Its derivative at 0 is 0, as in PyTorch; JAX uses 1.",
    PAIR,
    elementwise_type,
    flops=flops_per_element(2),
    grad_flops=grad_flops_per_element(1, 1),
    attrs=(REDUCE,),
    residuals=lambda types, attrs: (TensorType("int8", types[0].shape),),
    formula="loss = |prediction - target|",
    cases=_CASES,
)


def _infer_huber(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_positive(attrs, "delta")
    return elementwise_type(types, attrs)


HUBER = declare_loss(
    "huber",
    "The Huber loss: quadratic for a difference of up to `delta`, linear beyond.",
    PAIR,
    _infer_huber,
    flops=flops_per_element(6),
    grad_flops=grad_flops_per_element(1, 1),
    attrs=(
        REDUCE,
        Attr(
            "delta",
            float,
            "the difference at which the loss becomes linear, above 0",
            default=1.0,
        ),
    ),
    residuals=lambda types, attrs: (types[0],),
    formula="loss = c · (d - c / 2), d = prediction - target,"
    " c = min(max(d, -delta), delta); dprediction = c",
    source="Huber (1964), as in PyTorch and Keras",
    cases=(case("float32[batch, 1], float32[batch, 1]", delta=0.5),),
)


def _infer_divergence(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    prediction = types[0]
    if prediction.rank == 0 or prediction.shape[-1] == BATCH:
        raise OpError(
            "sums over the classes in the last dimension, but 'log_prediction' is"
            f" {prediction}",
            operand=0,
        )
    return reduced_type(prediction.dtype, prediction.shape[:-1], attrs)


KL_DIV = declare_loss(
    "kl_div",
    "The Kullback-Leibler divergence of a target distribution from a predicted"
    " one. It is summed over the last dimension, and averaged over all other"
    " dimensions. For [batch, classes] this is PyTorch's `batchmean`. A class"
    " with a target of 0 contributes 0.",
    (
        Operand(
            "log_prediction",
            "float, [batch, …, classes]: log-probabilities, such as the result of"
            " log_softmax",
            dtype="float",
        ),
        Operand(
            "target",
            "the same dtype and shape: probabilities",
            dtype="float",
            same="type",
        ),
    ),
    _infer_divergence,
    flops=flops_per_element(4),
    grad_flops=grad_flops_per_element(2, 4),
    attrs=(REDUCE,),
    saves=lambda types, attrs: (0, 1),
    formula="loss = Σ target · (log target - log_prediction);"
    " dlog_prediction = -target;"
    " dtarget = log target + 1 - log_prediction, or -log_prediction where target = 0",
    source="operands as in PyTorch's kl_div and optax's kl_divergence",
    cases=(case("float32[batch, 10], float32[batch, 10]"),),
)


def _infer_cosine(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    shape = types[0].shape
    check_operand(types, 0, "a", len(shape) > 0, "a dimension")
    axis = normalize_axis(attrs["axis"], len(shape))
    check_positive(attrs, "epsilon")
    return (TensorType(types[0].dtype, without(shape, axis)),)


COSINE_SIMILARITY = Declaration(
    "cosine_similarity",
    "The cosine of the angle between vectors along an axis, which is reduced."
    " Lengths below `epsilon` are replaced by `epsilon`, so a vector of zeros"
    " gives 0 and a finite gradient. For a loss, apply `negative` and"
    " `reduce_mean`.",
    (
        Operand("a", "float, at least one dimension", dtype="float"),
        Operand("b", "the same dtype and shape", dtype="float", same="type"),
    ),
    _infer_cosine,
    rule_along_axis,
    flops_per_element(8),
    grad_flops_per_element(6, 6),
    attrs=(
        Attr("axis", int, "the axis of the vectors", default=-1),
        Attr(
            "epsilon",
            float,
            "the minimum length, above 0; in float16 at least 2⁻¹⁴",
            default=1e-8,
        ),
    ),
    saves=lambda types, attrs: (0, 1),
    residuals=lambda types, attrs: _infer_cosine(types, attrs) * 3,
    formula="out = Σ u · v, u = a / max(|a|, epsilon), v = b / max(|b|, epsilon);"
    " da = dy · (v - out · u) / |a|",
    source="PyTorch's cosine_similarity, with the last axis as default",
    cases=(
        case("float32[batch, 64], float32[batch, 64]"),
        case("float32[batch, 64], float32[batch, 64]", axis=0),
    ),
)
