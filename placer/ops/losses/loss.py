"""Losses against labels: of classes, of yes and no, of two sides."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from placer.errors import OpError
from placer.ops.common.checks import (
    arity,
    need_float,
    need_integer,
    need_same_dtype,
)
from placer.ops.declaration import (
    Attr,
    Attrs,
    Case,
    Declaration,
    Operand,
    Types,
)
from placer.ops.losses.loss_reduction import (
    REDUCE,
    counts,
    flops,
    grad_flops,
    reduced,
    rows,
)
from placer.types import BATCH, TensorType

LOGITS = (
    Operand("logits", "float, [batch, …, classes]"),
    Operand("label", "integer, [batch, …], each in [0, classes)"),
)


def check_classes(kind: str, types: Types) -> None:
    """OpError unless the operands are logits of classes and their labels."""
    arity(kind, LOGITS, types)
    need_float(kind, "logits", types, 0)
    need_integer(kind, "label", types, 1)
    logits, label = types
    if logits.rank == 0 or logits.shape[-1] == BATCH:
        raise OpError(
            f"{kind} needs logits [batch, classes], 'logits' is {logits}", operand=0
        )
    if label.shape != logits.shape[:-1]:
        wanted = TensorType(label.dtype, logits.shape[:-1])
        raise OpError(
            f"{kind} needs one label for each row of logits: 'logits' is {logits},"
            f" so 'label' must be {wanted}, it is {label}",
            operand=1,
            hint=_flat(label, wanted),
        )


def _flat(label: TensorType, wanted: TensorType) -> str | None:
    if label.shape == (*wanted.shape, 1):
        return f"reshape the label to [{', '.join(map(str, wanted.shape))}]"
    return None


def check_same_shape(kind: str, names: tuple[str, str], types: Types) -> None:
    """OpError unless both operands have one shape."""
    first, second = types
    if first.shape == second.shape:
        return
    hint = None
    if sorted((first.shape, second.shape), key=len) == [(BATCH,), (BATCH, 1)]:
        hint = "[batch] and [batch, 1] would make a table of all pairs; reshape one"
    raise OpError(
        f"{kind} needs operands of one shape,"
        f" '{names[0]}' is {first}, '{names[1]}' is {second}",
        operand=1,
        hint=hint,
    )


LABEL_SMOOTHING = Attr(
    "label_smoothing",
    float,
    "the share of a label that goes to all classes alike, from 0 to below 1",
    default=0.0,
)


def _check_smoothing(kind: str, attrs: Attrs) -> None:
    if not 0 <= attrs["label_smoothing"] < 1:
        raise OpError(
            f"{kind} needs label_smoothing from 0 to below 1,"
            f" not {attrs['label_smoothing']}",
            attr="label_smoothing",
        )


def _infer_softmax(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    kind = "softmax_cross_entropy"
    check_classes(kind, types)
    _check_smoothing(kind, attrs)
    logits, label = types
    weights = attrs["class_weights"]
    if weights and len(weights) != logits.shape[-1]:
        raise OpError(
            f"{kind} needs one of class_weights for each class: 'logits' is {logits},"
            f" {len(weights)} are given",
            attr="class_weights",
        )
    if not all(isfinite(w) and w >= 0 for w in weights):
        raise OpError(
            f"{kind} needs class_weights from 0 on, not {list(weights)}",
            attr="class_weights",
        )
    return reduced(logits.dtype, label.shape, attrs)


def _softmax_flops(types: Types, attrs: Attrs) -> int:
    smoothed = 2 + bool(attrs["class_weights"]) if attrs["label_smoothing"] else 0
    return (5 + smoothed) * types[0].numel()


def _softmax_grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    target = 2 * bool(attrs["label_smoothing"]) + 3 * bool(attrs["class_weights"])
    return (2 + target) * types[0].numel() * len(wrt)


SOFTMAX_CROSS_ENTROPY = Declaration(
    "softmax_cross_entropy",
    "The cross entropy of softmax(logits) against class numbers, without overflow for"
    " any finite logits. A label outside [0, classes) gives NaN. The mean divides by the"
    " rows, with class weights too; PyTorch divides by the sum of the rows' weights."
    " For a weight of each row take `reduce: none`, `mul` and `reduce_mean`.",
    LOGITS,
    _infer_softmax,
    rows,
    _softmax_flops,
    _softmax_grad_flops,
    attrs=(
        REDUCE,
        LABEL_SMOOTHING,
        Attr(
            "class_weights",
            list[float],
            "what the loss of each class is multiplied by; none: all are 1",
            default=(),
        ),
    ),
    saves=lambda types, attrs: (1,),
    residuals=lambda types, attrs: (types[0],),
    counts=counts,
    indexes=lambda types, attrs: {1: int(types[0].shape[-1])},
    formula="loss = Σ q · (log Σ exp(logits) - logits),"
    " q = class_weights · ((1 - label_smoothing) · onehot(label)"
    " + label_smoothing / classes); dlogits = softmax(logits) · Σ q - q",
    source="label smoothing by Szegedy et al. (2016), joined with class weights as in"
    " PyTorch",
    cases=(
        Case(("float32[batch, 10]", "int32[batch]")),
        Case(("float32[batch, 10]", "int32[batch]"), {"reduce": "none"}),
        Case(("float32[batch, 10]", "int32[batch]"), {"label_smoothing": 0.1}),
        Case(("float32[batch, 2]", "int32[batch]"), {"class_weights": [1.0, 5.0]}),
    ),
    example="{name: loss, op: softmax_cross_entropy, in: [logits, label]}",
)

_BINARY = (
    Operand("logits", "float, any shape"),
    Operand("label", "the same shape; an integer, or a float of the logits' dtype"),
)


def _infer_sigmoid(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    kind, names = "sigmoid_cross_entropy", ("logits", "label")
    arity(kind, _BINARY, types)
    need_float(kind, "logits", types, 0)
    if types[1].is_float:
        need_same_dtype(kind, names, types)
    else:
        need_integer(kind, "label", types, 1)
    check_same_shape(kind, names, types)
    _check_smoothing(kind, attrs)
    weight = attrs["positive_weight"]
    if not (isfinite(weight) and weight > 0):
        raise OpError(
            f"{kind} needs a positive_weight above 0, not {weight}",
            attr="positive_weight",
        )
    return reduced(types[0].dtype, types[0].shape, attrs)


def _sigmoid_flops(types: Types, attrs: Attrs) -> int:
    smoothed, weighted = bool(attrs["label_smoothing"]), attrs["positive_weight"] != 1
    return (7 + 2 * smoothed + 5 * int(weighted)) * types[0].numel()


def _sigmoid_grad_flops(types: Types, attrs: Attrs, wrt: Sequence[int]) -> int:
    smoothed, weighted = bool(attrs["label_smoothing"]), attrs["positive_weight"] != 1
    of_label = 1 + smoothed + 8 * int(weighted)
    return ((0 in wrt) + of_label * (1 in wrt)) * types[0].numel()


SIGMOID_CROSS_ENTROPY = Declaration(
    "sigmoid_cross_entropy",
    "The cross entropy of sigmoid(logits) against labels in [0, 1], element by element,"
    " without overflow for any finite logits. The mean divides by the elements, with a"
    " weight of positives too.",
    _BINARY,
    _infer_sigmoid,
    rows,
    _sigmoid_flops,
    _sigmoid_grad_flops,
    attrs=(
        REDUCE,
        LABEL_SMOOTHING,
        Attr(
            "positive_weight",
            float,
            "what the loss of a positive label is multiplied by",
            default=1.0,
        ),
    ),
    saves=lambda types, attrs: (0,) if types[1].is_float else (),
    residuals=lambda types, attrs: (types[0],),
    counts=counts,
    formula="loss = positive_weight · t · log(1 + exp(-z)) + (1 - t) · log(1 + exp(z)),"
    " z the logits, t = (1 - label_smoothing) · label + label_smoothing / 2;"
    " dz = (1 - t) · sigmoid(z) - positive_weight · t · sigmoid(-z);"
    " dlabel = -(1 - label_smoothing) · z without a weight",
    source="without a weight the form of TensorFlow's"
    " sigmoid_cross_entropy_with_logits, max(z, 0) - z · t + log(1 + exp(-|z|));"
    " smoothing as in Keras, the weight as PyTorch's pos_weight",
    cases=(
        Case(("float32[batch, 1]", "int32[batch, 1]")),
        Case(("float32[batch]", "float32[batch]")),
        Case(("float32[batch]", "int32[batch]"), {"positive_weight": 20.0}),
    ),
    example="{name: loss, op: sigmoid_cross_entropy, in: [logit, click]}",
)

_SIDES = (
    Operand("prediction", "float, any shape: positive for a positive label"),
    Operand("label", "integer, the same shape: 1 is positive, 0 and -1 are negative"),
)


def _infer_hinge(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    arity("hinge", _SIDES, types)
    need_float("hinge", "prediction", types, 0)
    need_integer("hinge", "label", types, 1)
    check_same_shape("hinge", ("prediction", "label"), types)
    return reduced(types[0].dtype, types[0].shape, attrs)


HINGE = Declaration(
    "hinge",
    "How far a prediction is from being right by a margin of 1. A label above 0 is"
    " positive, any other negative: labels of 0 and 1 and of -1 and 1 both serve, as in"
    " Keras. The slope on the margin is 0, as that of relu.",
    _SIDES,
    _infer_hinge,
    rows,
    flops(3),
    grad_flops(1),
    attrs=(REDUCE,),
    residuals=lambda types, attrs: (TensorType("int8", types[0].shape),),
    counts=counts,
    formula="loss = max(1 - s · prediction, 0), s = 1 where label > 0, else -1",
    cases=(Case(("float32[batch]", "int32[batch]")),),
    example="{name: loss, op: hinge, in: [score, label]}",
)

DECLARATIONS = (SOFTMAX_CROSS_ENTROPY, SIGMOID_CROSS_ENTROPY, HINGE)
