"""The reduction of losses to their mean or sum.

A mean divides by the rows of the *global* batch, so that the sum of the partial values
of all places is the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from placer.ops.declaration import Attrs, BatchRule, Declaration, choice
from placer.ops.operand import Operand, Types
from placer.place.types import Dim, TensorType

REDUCE = choice(
    "reduce",
    "the result: the mean of the losses, their sum, or the losses themselves",
    ("mean", "sum", "none"),
)

PAIR = (
    Operand("prediction", "float, any shape", dtype="float"),
    Operand("target", "the same dtype and shape", dtype="float", same="type"),
)
"""The operands of a loss or metric of the difference of two values."""


def reduced_type(
    dtype: str, shape: Sequence[Dim], attrs: Attrs
) -> tuple[TensorType, ...]:
    """Return the result type, given the shape of the losses before the reduction."""
    return (TensorType(dtype, tuple(shape) if attrs["reduce"] == "none" else ()),)


def elementwise_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the result type of a loss of each element of the first operand."""
    return reduced_type(types[0].dtype, types[0].shape, attrs)


def loss_rule(types: Types, attrs: Attrs) -> BatchRule:
    """The batch rule of a loss: `reduce`, or `rows` if the losses are not reduced."""
    return "rows" if attrs["reduce"] == "none" else "reduce"


def takes_count(types: Types, attrs: Attrs) -> bool:
    """Whether a loss divides by the rows of the global batch."""
    return bool(attrs["reduce"] == "mean" and types[0].has_rows)


declare_loss = partial(Declaration, batch_rule=loss_rule, takes_count=takes_count)
"""Declares a loss, whose attributes include `REDUCE`."""
