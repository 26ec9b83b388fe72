"""The reduction of losses to their mean or sum.

A mean divides by the rows of the *global* batch, so that the sum of the partial values
of all places is the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placer.ops.declaration import Attr, Attrs, BatchRule, Types
from placer.types import Dim, TensorType

REDUCE = Attr(
    "reduce",
    str,
    "the result: the mean of the losses, their sum, or the losses themselves",
    default="mean",
    choices=("mean", "sum", "none"),
)


def reduced_type(
    dtype: str, shape: Sequence[Dim], attrs: Attrs
) -> tuple[TensorType, ...]:
    """Return the result type, given the shape of the losses before the reduction."""
    return (TensorType(dtype, tuple(shape) if attrs["reduce"] == "none" else ()),)


def loss_rule(types: Types, attrs: Attrs) -> BatchRule:
    """The batch rule of a loss: `reduce`, or `rows` if the losses are not reduced."""
    return "rows" if attrs["reduce"] == "none" else "reduce"


def takes_count(types: Types, attrs: Attrs) -> bool:
    """Whether a loss divides by the rows of the global batch."""
    return bool(attrs["reduce"] == "mean" and types[0].has_rows)


def flops_per_element(each: int) -> Callable[[Types, Attrs], int]:
    """Return `flops` with `each` operations per element of the first operand."""
    return lambda types, attrs: each * types[0].numel()


def grad_flops_per_element(*each: int) -> Callable[[Types, Attrs, Sequence[int]], int]:
    """Return `grad_flops`, given the operations per element for each operand."""
    return lambda types, attrs, wrt: sum(each[i] for i in wrt) * types[0].numel()
