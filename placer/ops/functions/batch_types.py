"""Result types with a batch dimension, inferred from traces for two batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from placer.errors import PlacerError
from placer.place.types import BATCH, Dim, TensorType

TRACE_BATCHES = (14, 58)
"""Batch sizes that a function is traced for: a dimension of these sizes is the batch.

They are even, for functions that split the batch in two, and unlikely to be sizes that
the function uses itself.
"""


PROOF_BATCHES = (14, 57)
"""Batch sizes for the proof that a function works row by row.

One is odd, and they have no common divisor: a function that depends on the parity of
its batch, or on a divisor of it, has different equations for the two.
"""


def abstract_values(types: Sequence[TensorType], rows: int) -> list[Any]:
    """Return values without content, to trace a function for `rows` rows."""
    struct: Any = jax.ShapeDtypeStruct  # it has no type hints
    return [struct(kind.sizes(rows), kind.dtype) for kind in types]


def result_type(what: str, small: Any, large: Any) -> TensorType:
    """Return the type of a result from its abstract values for `TRACE_BATCHES`.

    `small` and `large` have a shape and a dtype; `what` names the result in errors.
    Raises PlacerError if a dimension changes with the batch and is not the batch.
    """
    if small.ndim != large.ndim:
        raise PlacerError(f"the rank of {what} changes with the batch")
    shape: list[Dim] = []
    for axis, sizes in enumerate(zip(small.shape, large.shape, strict=True)):
        if sizes != TRACE_BATCHES and sizes[0] != sizes[1]:
            raise PlacerError(
                f"dimension {axis} of {what} changes with the batch and"
                f" is not the batch: {sizes[0]} for {TRACE_BATCHES[0]} rows,"
                f" {sizes[1]} for {TRACE_BATCHES[1]}",
                hint="a dimension must be the batch, or the same for every batch",
            )
        shape.append(BATCH if sizes == TRACE_BATCHES else sizes[0])
    return TensorType(str(small.dtype), tuple(shape))
