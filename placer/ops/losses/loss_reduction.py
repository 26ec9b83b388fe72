"""What becomes of losses, one for each row or element: their mean, their sum, or none.

A mean divides by the rows of the *global* batch, so that the partial values of all
places add up to it (design 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placer.ops.declaration import Attr, Attrs, Rule, Types
from placer.types import Dim, TensorType

REDUCE = Attr(
    "reduce",
    str,
    "what becomes of the losses: their mean, their sum, or none of it",
    default="mean",
    choices=("mean", "sum", "none"),
)


def reduced(dtype: str, shape: Sequence[Dim], attrs: Attrs) -> tuple[TensorType, ...]:
    """The result type, given the shape of the losses before `reduce`."""
    return (TensorType(dtype, tuple(shape) if attrs["reduce"] == "none" else ()),)


def rows(types: Types, attrs: Attrs) -> Rule:
    """The batch rule of a loss: a sum over rows, or rows as they are."""
    return "rows" if attrs["reduce"] == "none" else "reduce"


def counts(types: Types, attrs: Attrs) -> bool:
    """Whether a loss divides by the rows of the global batch."""
    return bool(attrs["reduce"] == "mean" and types[0].has_rows)


def flops(each: int) -> Callable[[Types, Attrs], int]:
    """So many operations for each element of the first operand."""
    return lambda types, attrs: each * types[0].numel()


def grad_flops(*each: int) -> Callable[[Types, Attrs, Sequence[int]], int]:
    """So many for each element, by operand."""
    return lambda types, attrs, wrt: sum(each[i] for i in wrt) * types[0].numel()
