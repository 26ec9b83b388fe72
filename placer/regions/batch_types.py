"""Types with a batch, found by tracing for two batches."""

from __future__ import annotations

from typing import Any

from placer.errors import PlacerError
from placer.types import BATCH, Dim, TensorType

SIZES = (14, 58)
"""Batches that a function is traced with: a dimension of these sizes is the batch. Even,
for those that cut it in two, and no numbers that a file is likely to say itself."""


PROOF = (14, 57)
"""Batches of which it is proven that a function works row by row. One is odd, and they
have no common divisor: a function that depends on the parity of its batch, or on whether
it divides by some number, is not the same for both."""


def result_type(what: str, small: Any, large: Any) -> TensorType:
    """The type of a result, whose batch dimensions are the sizes of the batches.

    `what` names it in errors. PlacerError for a dimension that changes otherwise.
    """
    if small.ndim != large.ndim:
        raise PlacerError(f"{what} has another rank for another batch")
    shape: list[Dim] = []
    for axis, sizes in enumerate(zip(small.shape, large.shape, strict=True)):
        if sizes != SIZES and sizes[0] != sizes[1]:
            raise PlacerError(
                f"dimension {axis} of {what} changes with the batch and"
                f" is not the batch: {sizes[0]} for {SIZES[0]} rows, {sizes[1]} for"
                f" {SIZES[1]}",
                hint="a dimension is the batch or the same for every batch",
            )
        shape.append(BATCH if sizes == SIZES else sizes[0])
    return TensorType(str(small.dtype), tuple(shape))
