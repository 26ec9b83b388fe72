"""Losses with labels: softmax_cross_entropy, sigmoid_cross_entropy and hinge."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from placer.errors import OpError
from placer.ops.common.checks import check_attr
from placer.ops.common.costs import flops_per_element, grad_flops_per_element
from placer.ops.declaration import Attr, Attrs, IndexBound, case
from placer.ops.losses.loss_reduction import (
    REDUCE,
    declare_loss,
    elementwise_type,
    reduced_type,
)
from placer.ops.operand import Operand, Types, require_same_dtype, require_same_shape
from placer.place.types import BATCH, TensorType

LOGITS = (
    Operand("logits", "float, [batch, …, classes]", dtype="float"),
    Operand("label", "integer, [batch, …], each in [0, classes)", dtype="integer"),
)


def check_classes(types: Types) -> None:
    """Raise OpError unless the operands are logits of classes and their labels."""
    logits, label = types
    if logits.rank == 0 or logits.shape[-1] == BATCH:
        raise OpError(f"needs logits [batch, classes], 'logits' is {logits}", operand=0)
    if label.shape != logits.shape[:-1]:
        expected = TensorType(label.dtype, logits.shape[:-1])
        shape = ", ".join(map(str, expected.shape))
        has_one_more = label.shape == (*expected.shape, 1)
        raise OpError(
            f"needs one label for each row of logits: 'logits' is {logits}, so"
            f" 'label' must be {expected}, not {label}",
            operand=1,
            hint=f"reshape the label to [{shape}]" if has_one_more else None,
        )


LABEL_SMOOTHING = Attr(
    "label_smoothing",
    float,
    "the probability that is distributed evenly over all classes, in [0, 1)",
    default=0.0,
)


def _check_smoothing(attrs: Attrs) -> None:
    name = "label_smoothing"
    check_attr(attrs, name, 0 <= attrs[name] < 1, f"{name} from 0 to below 1")


def _infer_softmax(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_classes(types)
    _check_smoothing(attrs)
    logits, label = types
    weights = attrs["class_weights"]
    if weights and len(weights) != logits.shape[-1]:
        raise OpError(
            f"needs one class weight for each class: 'logits' is {logits}, but"
            f" class_weights has {len(weights)}",
            attr="class_weights",
        )
    if not all(isfinite(w) and w >= 0 for w in weights):
        raise OpError(
            f"needs finite class_weights of at least 0, not {list(weights)}",
            attr="class_weights",
        )
    return reduced_type(logits.dtype, label.shape, attrs)


def _softmax_flops(types: Types, attrs: Attrs) -> int:
    smoothed = 2 + bool(attrs["class_weights"]) if attrs["label_smoothing"] else 0
    return (5 + smoothed) * types[0].numel()


def _softmax_grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    target = 2 * bool(attrs["label_smoothing"]) + 3 * bool(attrs["class_weights"])
    return (2 + target) * types[0].numel() * len(wrt)


SOFTMAX_CROSS_ENTROPY = declare_loss(
    "softmax_cross_entropy",
    "The cross entropy of softmax(logits) with integer labels. Finite logits"
    " never overflow. A label outside [0, classes) gives NaN. The mean divides by"
    " the number of rows, even with class weights; PyTorch divides by the sum of"
    " the rows' weights. To weight rows, use `reduce: none`, then `mul` and"
    " `reduce_mean`.",
    LOGITS,
    _infer_softmax,
    flops=_softmax_flops,
    grad_flops=_softmax_grad_flops,
    attrs=(
        REDUCE,
        LABEL_SMOOTHING,
        Attr(
            "class_weights",
            list[float],
            "a factor for each class, at least 0; an empty list: all factors are 1",
            default=(),
        ),
    ),
    saves=lambda types, attrs: (1,),
    residuals=lambda types, attrs: (types[0],),
    index_bounds=lambda types, attrs: {
        1: IndexBound(int(types[0].shape[-1]), scores=0)
    },
    formula="loss = Σ q · (log Σ exp(logits) - logits),"
    " q = class_weights · ((1 - label_smoothing) · onehot(label)"
    " + label_smoothing / classes); dlogits = softmax(logits) · Σ q - q",
    source="label smoothing by Szegedy et al. (2016), combined with class weights as in"
    " PyTorch",
    cases=(
        case("float32[batch, 10], int32[batch]"),
        case("float32[batch, 10], int32[batch]", reduce="none"),
        case("float32[batch, 10], int32[batch]", label_smoothing=0.1),
        case("float32[batch, 2], int32[batch]", class_weights=[1.0, 5.0]),
    ),
)


def _infer_sigmoid(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    names = ("logits", "label")
    if types[1].is_float:
        require_same_dtype(names, types, 1)
    require_same_shape(names, types, 1)
    _check_smoothing(attrs)
    weight = attrs["positive_weight"]
    valid = isfinite(weight) and weight > 0
    check_attr(attrs, "positive_weight", valid, "a positive_weight above 0")
    return elementwise_type(types, attrs)


def _sigmoid_flops(types: Types, attrs: Attrs) -> int:
    smoothed, weighted = bool(attrs["label_smoothing"]), attrs["positive_weight"] != 1
    return (7 + 2 * smoothed + 5 * int(weighted)) * types[0].numel()


def _sigmoid_grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    smoothed, weighted = bool(attrs["label_smoothing"]), attrs["positive_weight"] != 1
    for_label = 1 + smoothed + 8 * int(weighted)
    return ((0 in wrt) + for_label * (1 in wrt)) * types[0].numel()


SIGMOID_CROSS_ENTROPY = declare_loss(
    "sigmoid_cross_entropy",
    "The binary cross entropy of sigmoid(logits) with labels in [0, 1], element"
    " by element. Finite logits never overflow. The mean divides by the number of"
    " elements, even with a positive weight.",
    (
        Operand("logits", "float, any shape", dtype="float"),
        Operand(
            "label",
            "the same shape, values in [0, 1]; an integer, or a float of the logits'"
            " dtype",
            dtype="number",
        ),
    ),
    _infer_sigmoid,
    index_bounds=lambda types, attrs: {1: IndexBound(2, scores=0)},
    flops=_sigmoid_flops,
    grad_flops=_sigmoid_grad_flops,
    attrs=(
        REDUCE,
        LABEL_SMOOTHING,
        Attr(
            "positive_weight",
            float,
            "a factor for the loss of positive labels, above 0",
            default=1.0,
        ),
    ),
    saves=lambda types, attrs: (0,) if types[1].is_float else (),
    residuals=lambda types, attrs: (types[0],),
    formula="loss = positive_weight · t · log(1 + exp(-z)) + (1 - t) · log(1 + exp(z)),"
    " z the logits, t = (1 - label_smoothing) · label + label_smoothing / 2;"
    " dz = (1 - t) · sigmoid(z) - positive_weight · t · sigmoid(-z);"
    " dlabel = -(1 - label_smoothing) · z without a weight",
    source="without a weight, computed as TensorFlow's"
    " sigmoid_cross_entropy_with_logits: max(z, 0) - z · t + log(1 + exp(-|z|));"
    " smoothing as in Keras; the weight is PyTorch's pos_weight",
    cases=(
        case("float32[batch, 1], int32[batch, 1]"),
        case("float32[batch], float32[batch]"),
        case("float32[batch], int32[batch]", positive_weight=20.0),
    ),
)


HINGE = declare_loss(
    "hinge",
    "The hinge loss with a margin of 1. A label above 0 is positive, any other is"
    " negative. Labels may be 0 and 1, or -1 and 1, as in Keras. The derivative"
    " on the margin is 0.",
    (
        Operand(
            "prediction",
            "float, any shape: a score, positive for a positive label",
            dtype="float",
        ),
        Operand(
            "label",
            "integer, the same shape: 1 is positive, 0 and -1 are negative",
            dtype="integer",
            same="shape",
        ),
    ),
    elementwise_type,
    flops=flops_per_element(3),
    grad_flops=grad_flops_per_element(1),
    attrs=(REDUCE,),
    residuals=lambda types, attrs: (TensorType("int8", types[0].shape),),
    formula="loss = max(1 - s · prediction, 0), s = 1 where label > 0, else -1",
    cases=(case("float32[batch], int32[batch]"),),
)
