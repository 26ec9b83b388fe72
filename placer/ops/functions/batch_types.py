"""Infers result types with a batch dimension from traces for two batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from placer.errors import PlacerError
from placer.place.types import BATCH, Dim, TensorType

TRACE_BATCHES = (14, 58)
"""The batch sizes to trace: a dimension with these two sizes is the batch.

They are even, for functions that split the batch in two. Other dimensions are unlikely
to have these sizes.
"""


PROOF_BATCHES = (14, 57)
"""Batch sizes for the proof that a function works row by row.

One is odd, and they have no common divisor. So the equations of a function that depends
on the parity or a divisor of the batch size differ.
"""


def trace_batches(parts: int) -> tuple[int, int]:
    """Return the batch sizes to trace for a batch that is cut into parts; 0 for none."""
    small, large = TRACE_BATCHES
    return small * max(1, parts), large * max(1, parts)


def abstract_values(types: Sequence[TensorType], rows: int) -> list[Any]:
    """Return abstract values, to trace a function for `rows` rows."""
    struct: Any = jax.ShapeDtypeStruct  # ShapeDtypeStruct has no type hints
    return [struct(kind.sizes(rows), kind.dtype) for kind in types]


def result_type(
    what: str,
    small: Any,
    large: Any,
    batches: tuple[int, int] = TRACE_BATCHES,
) -> TensorType:
    """Return the type of a result from its abstract values for two batch sizes.

    `what` names the result in errors. Raises PlacerError if a dimension changes with
    the batch but is not the batch.
    """
    if small.ndim != large.ndim:
        raise PlacerError(f"the rank of {what} changes with the batch")
    shape: list[Dim] = []
    for axis, sizes in enumerate(zip(small.shape, large.shape, strict=True)):
        if sizes != batches and sizes[0] != sizes[1]:
            raise PlacerError(
                f"dimension {axis} of {what} changes with the batch but is not the"
                f" batch: {sizes[0]} for {batches[0]} rows, {sizes[1]} for"
                f" {batches[1]}",
                hint="every dimension must be the batch, or have the same size for"
                " every batch",
            )
        shape.append(BATCH if sizes == batches else sizes[0])
    return TensorType(str(small.dtype), tuple(shape))
