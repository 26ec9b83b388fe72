"""Losses: one number per row or per element, summed, averaged or as it is.

A mean divides by the rows of the *global* batch, so that the partial values of all
places add up to it (design 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placer.errors import OpError
from placer.graph.types import BATCH, TensorType
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
    arity,
    need_float,
    need_integer,
    need_same_dtype,
)

REDUCE = Attr(
    "reduce",
    str,
    "what becomes of the losses: their mean, their sum, or none of it",
    default="mean",
    choices=("mean", "sum", "none"),
)

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


def _check_same_shape(kind: str, names: tuple[str, str], types: Types) -> None:
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


def _result(dtype: str, losses: TensorType, attrs: Attrs) -> tuple[TensorType, ...]:
    """The result type, given the type of the losses before `reduce`."""
    return (TensorType(dtype, losses.shape if attrs["reduce"] == "none" else ()),)


def _rows(types: Types, attrs: Attrs) -> Rule:
    return "rows" if attrs["reduce"] == "none" else "reduce"


def _counts(types: Types, attrs: Attrs) -> bool:
    return bool(attrs["reduce"] == "mean" and types[0].has_rows)


def _flops(each: int) -> Callable[[Types, Attrs], int]:
    return lambda types, attrs: each * types[0].numel()


def _grad_flops(each: int) -> Callable[[Types, Attrs, Sequence[int]], int]:
    return lambda types, attrs, wrt: each * types[0].numel() * len(wrt)


def _infer_softmax(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    check_classes("softmax_cross_entropy", types)
    logits, label = types
    return _result(logits.dtype, label, attrs)


SOFTMAX_CROSS_ENTROPY = Declaration(
    "softmax_cross_entropy",
    "The cross entropy of softmax(logits) against class numbers, without overflow for"
    " any finite logits. A label outside [0, classes) gives NaN.",
    LOGITS,
    _infer_softmax,
    _rows,
    _flops(5),
    _grad_flops(2),
    attrs=(REDUCE,),
    saves=lambda types, attrs: (1,),
    residuals=lambda types, attrs: (types[0],),
    counts=_counts,
    formula="loss = log Σ exp(logits) - logits[label];"
    " dlogits = softmax(logits) - onehot(label)",
    cases=(
        Case(("float32[batch, 10]", "int32[batch]")),
        Case(("float32[batch, 10]", "int32[batch]"), {"reduce": "none"}),
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
    _check_same_shape(kind, names, types)
    return _result(types[0].dtype, types[0], attrs)


SIGMOID_CROSS_ENTROPY = Declaration(
    "sigmoid_cross_entropy",
    "The cross entropy of sigmoid(logits) against labels in [0, 1], element by element,"
    " without overflow for any finite logits.",
    _BINARY,
    _infer_sigmoid,
    _rows,
    _flops(7),
    _grad_flops(1),
    attrs=(REDUCE,),
    saves=lambda types, attrs: (0,) if types[1].is_float else (),
    residuals=lambda types, attrs: (types[0],),
    counts=_counts,
    formula="loss = max(z, 0) - z · label + log(1 + exp(-|z|)), z the logits;"
    " dz = sigmoid(z) - label; dlabel = -z",
    source="the form of TensorFlow's sigmoid_cross_entropy_with_logits",
    cases=(
        Case(("float32[batch, 1]", "int32[batch, 1]")),
        Case(("float32[batch]", "float32[batch]")),
    ),
    example="{name: loss, op: sigmoid_cross_entropy, in: [logit, click]}",
)

_PAIR = (
    Operand("prediction", "float, any shape"),
    Operand("target", "the same dtype and shape"),
)


def _infer_squared(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    kind, names = "mean_squared_error", ("prediction", "target")
    arity(kind, _PAIR, types)
    for index, name in enumerate(names):
        need_float(kind, name, types, index)
    need_same_dtype(kind, names, types)
    _check_same_shape(kind, names, types)
    return _result(types[0].dtype, types[0], attrs)


MEAN_SQUARED_ERROR = Declaration(
    "mean_squared_error",
    "The square of the difference, element by element.",
    _PAIR,
    _infer_squared,
    _rows,
    _flops(3),
    _grad_flops(2),
    attrs=(REDUCE,),
    residuals=lambda types, attrs: (types[0],),
    counts=_counts,
    formula="loss = (prediction - target)²",
    cases=(Case(("float32[batch, 1]", "float32[batch, 1]")),),
    example="{name: loss, op: mean_squared_error, in: [prediction, target]}",
)

DECLARATIONS = (SOFTMAX_CROSS_ENTROPY, SIGMOID_CROSS_ENTROPY, MEAN_SQUARED_ERROR)
