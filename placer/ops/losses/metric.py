"""Metrics: reported numbers that are not trained on.

The result of a metric is a statistic: sums and counts, which can be added over nodes
and batches. The finalizer computes the reported number from the sum of all statistics
(`placer.plan.settings.training.metrics`).
"""

from __future__ import annotations

from functools import partial

from placer.errors import OpError
from placer.ops.common.checks import check_attr
from placer.ops.common.costs import flops_per_element
from placer.ops.declaration import Attr, Attrs, Declaration, case, flag, required
from placer.ops.losses.loss import LOGITS, check_classes
from placer.ops.losses.loss_reduction import PAIR
from placer.ops.operand import Operand, Types, require_integer, require_same_shape
from placer.place.types import TensorType

COUNTS = (TensorType("int32", (3,)),)
"""The statistic of a ratio: numerator, denominator, number of invalid rows."""

MAX_BINS = 1 << 20

_metric = partial(
    Declaration, batch_rule=lambda types, attrs: "reduce", differentiable=False
)


def _infer_accuracy(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_classes(types)
    return COUNTS


ACCURACY = _metric(
    "accuracy",
    "The fraction of rows whose largest logit belongs to the label. Among equal"
    " logits, the first counts as the largest. A label outside [0, classes) is"
    " never right. A NaN in the logits makes the accuracy NaN.",
    LOGITS,
    _infer_accuracy,
    flops=flops_per_element(2),
    finalizer="ratio",
    formula="Σ [argmax logits = label] / rows",
    cases=(case("float32[batch, 10], int32[batch]"),),
)


def _infer_top_k(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_classes(types)
    check_attr(attrs, "k", attrs["k"] >= 1, "k of at least 1")
    return COUNTS


TOP_K_ACCURACY = _metric(
    "top_k_accuracy",
    "The fraction of rows whose label is among the k classes with the largest"
    " logits. Among equal logits, lower classes come first, so k = 1 is accuracy."
    " A label outside [0, classes) is never right. A NaN in the logits makes the"
    " result NaN.",
    LOGITS,
    _infer_top_k,
    flops=flops_per_element(5),
    finalizer="ratio",
    attrs=(required("k", int, "the number of classes, at least 1"),),
    formula="Σ [label is among the k classes with the largest logits] / rows",
    cases=(case("float32[batch, 10], int32[batch]", k=3),),
)

_BINARY_ATTRS = (
    Attr(
        "threshold",
        float,
        "the probability above which a prediction is positive, in (0, 1)",
        default=0.5,
    ),
    flag("logits", "whether predictions are logits instead of probabilities"),
    Attr(
        "class_id",
        int | None,
        "the positive class; all others are negative. The predicted class has the"
        " largest logit, the first one among equal logits",
    ),
)


def _infer_binary(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    threshold, class_id = attrs["threshold"], attrs["class_id"]
    if class_id is None:
        _check_pair(types)
    else:
        require_integer("label", types, 1)
        check_classes(types)
        classes = types[0].shape[-1]
        assert isinstance(classes, int)
        if not 0 <= class_id < classes:
            raise OpError(
                f"has class_id {class_id}, but 'prediction' has {classes} classes",
                attr="class_id",
            )
        if threshold != 0.5 or attrs["logits"]:
            raise OpError(
                "with class_id uses the largest logit, and takes neither"
                " threshold nor logits",
                attr="class_id",
            )
    if not 0 < threshold < 1:
        raise OpError(
            f"needs a threshold between 0 and 1, not {threshold}",
            attr="threshold",
            hint="the threshold is a probability, even with logits: true",
        )
    return COUNTS


def _check_pair(types: Types) -> None:
    """Raise OpError unless the label is a number or bool of the prediction's shape."""
    if not types[1].is_float and types[1].dtype != "bool":
        require_integer("label", types, 1)
    require_same_shape(("prediction", "label"), types, 1)


_declare_binary = partial(
    _metric,
    operands=(
        Operand(
            "prediction",
            "float, any shape: the probability of a positive; with `class_id`, logits"
            " of shape [batch, …, classes]",
            dtype="float",
        ),
        Operand(
            "label",
            "the same shape, where a number above 0.5 is positive; with `class_id`,"
            " integer of shape [batch, …]",
        ),
    ),
    finalizer="ratio",
    attrs=_BINARY_ATTRS,
    cases=(
        case("float32[batch], int32[batch]", threshold=0.3),
        case("float32[batch, 10], int32[batch]", class_id=3),
    ),
)
PRECISION = _declare_binary(
    "precision",
    "The fraction of true positives among predicted positives. NaN if there are no"
    " predicted positives, or if a prediction is NaN.",
    result_types=_infer_binary,
    flops=flops_per_element(4),
    formula="Σ [predicted and positive] / Σ [predicted]",
)
RECALL = _declare_binary(
    "recall",
    "The fraction of positives that are predicted as positive. NaN if there are no"
    " positives, or if a prediction is NaN.",
    result_types=_infer_binary,
    flops=flops_per_element(4),
    formula="Σ [predicted and positive] / Σ [positive]",
)
F1 = _declare_binary(
    "f1",
    "The harmonic mean of precision and recall. NaN if there are neither positives nor"
    " predicted positives, or if a prediction is NaN.",
    result_types=_infer_binary,
    flops=flops_per_element(5),
    formula="2 · Σ [predicted and positive] / (Σ [predicted] + Σ [positive])",
)


def _infer_auc(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    _check_pair(types)
    bins: int = attrs["bins"]
    valid = 2 <= bins <= MAX_BINS
    check_attr(attrs, "bins", valid, f"2 to {MAX_BINS:,} bins", ",")
    return (TensorType("int32", (2, bins + 1)),)


AUC = _metric(
    "auc",
    "The area under the receiver operating characteristic curve (ROC AUC), from a"
    " histogram of the predictions. Each prediction is rounded to the nearest"
    " multiple of 1 / (bins - 1). The result is exact for such multiples. NaN if"
    " there are no positives or no negatives, or if a prediction is NaN or"
    " outside [0, 1].",
    (
        Operand(
            "prediction",
            "float, any shape: the probability of a positive",
            dtype="float",
        ),
        Operand("label", "the same shape, where a number above 0.5 is positive"),
    ),
    _infer_auc,
    flops=flops_per_element(6),
    finalizer="auc",
    attrs=(
        Attr(
            "bins",
            int,
            f"the number of bins of the histogram, from 2 to {MAX_BINS:,}",
            default=4096,
        ),
        flag("logits", "whether predictions are logits; sigmoid is then applied"),
    ),
    formula="P(prediction of a positive > prediction of a negative) + ½ P(both are equal)",
    source="the histogram of PaddlePaddle's auc, with predictions rounded to the"
    " nearest bin",
    cases=(case("float32[batch], int32[batch]"),),
)


def _infer_sums(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the type of a sum and a count: float64 for float64, else float32."""
    wide = "float64" if types[0].dtype == "float64" else "float32"
    return (TensorType(wide, (2,)),)


_declare_error = partial(
    _metric,
    operands=PAIR,
    result_types=_infer_sums,
    flops=flops_per_element(3),
    cases=(case("float32[batch, 1], float32[batch, 1]"),),
)
MEAN_ABSOLUTE_ERROR = _declare_error(
    "mean_absolute_error",
    "The mean absolute difference of a prediction and a target over all elements.",
    finalizer="ratio",
    formula="Σ |prediction - target| / n",
)
ROOT_MEAN_SQUARED_ERROR = _declare_error(
    "root_mean_squared_error",
    "The root mean squared difference of a prediction and a target over all"
    " elements. For an epoch or an evaluation, it is the root of the mean over"
    " all batches, not the mean of the batches' roots.",
    finalizer="root_ratio",
    formula="√(Σ (prediction - target)² / n)",
)


MEAN = _metric(
    "mean",
    "The mean of all elements, as a metric. If other ops use the mean, use"
    " `reduce_mean` instead.",
    (Operand("x", "float, any shape", dtype="float"),),
    _infer_sums,
    flops=flops_per_element(1),
    finalizer="ratio",
    formula="Σ x / n",
    cases=(case("float32[batch, 8]"),),
)
