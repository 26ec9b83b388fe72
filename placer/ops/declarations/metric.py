"""Metrics: numbers that are watched, not trained on."""

from __future__ import annotations

from placer.graph.types import TensorType
from placer.ops.declaration import Attrs, Case, Declaration, Types
from placer.ops.declarations.loss import LOGITS, check_classes


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_classes("accuracy", types)
    return (TensorType(types[0].dtype),)


ACCURACY = Declaration(
    "accuracy",
    "The share of rows whose largest logit is the label's; of equal ones the first"
    " counts.",
    LOGITS,
    _infer,
    lambda types, attrs: "reduce",
    lambda types, attrs: types[0].numel(),
    lambda types, attrs, wrt: 0,
    counts=lambda types, attrs: types[0].has_rows,
    differentiable=False,
    metric=True,
    formula="out = Σ [argmax logits = label] / rows",
    cases=(Case(("float32[batch, 10]", "int32[batch]")),),
    example="{name: accuracy, op: accuracy, in: [logits, label]}",
)

DECLARATIONS = (ACCURACY,)
