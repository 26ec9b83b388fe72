"""Reduces losses to their mean or sum.

A mean divides by the rows of the *global* batch, so the partial results of all nodes
add up to the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from placer.ops.declaration import Attrs, BatchRule, Declaration, choice
from placer.ops.operand import Operand, Types
from placer.place.types import Dim, TensorType

REDUCE = choice(
    "reduce",
    "the result: the mean of the losses, their sum, or all losses",
    ("mean", "sum", "none"),
)

PAIR = (
    Operand("prediction", "float, any shape", dtype="float"),
    Operand("target", "the same dtype and shape", dtype="float", same="type"),
)
"""The operands of a loss or metric that compares two values element by element."""


def reduced_type(
    dtype: str, shape: Sequence[Dim], attrs: Attrs
) -> tuple[TensorType, ...]:
    """Return the result type, given the shape of the losses before the reduction."""
    return (TensorType(dtype, tuple(shape) if attrs["reduce"] == "none" else ()),)


def elementwise_type(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    """Return the result type of an elementwise loss."""
    return reduced_type(types[0].dtype, types[0].shape, attrs)


def loss_rule(types: Types, attrs: Attrs) -> BatchRule:
    """Return the batch rule of a loss: `reduce`, or `rows` for unreduced losses."""
    return "rows" if attrs["reduce"] == "none" else "reduce"


def takes_count(types: Types, attrs: Attrs) -> bool:
    """Return True if the loss divides by the rows of the global batch."""
    return bool(attrs["reduce"] == "mean" and types[0].has_rows)


declare_loss = partial(Declaration, batch_rule=loss_rule, takes_count=takes_count)
"""Declares a loss; its attributes must include `REDUCE`."""
