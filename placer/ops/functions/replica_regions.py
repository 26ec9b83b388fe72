"""Computes a region for several parts of a batch at once.

A worker computes the parts whose rows it has. Values of the graph have no axis of the
parts: rows of all parts are rows of the batch, a sum over the parts is a part of a sum,
and another value of a part is repeated for each row of the part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from placer.errors import PlacerError
from placer.ops.functions.replica_split import Kind, Split


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a batch whose rows a node has.

    Attributes:
        count: their number.
        rows: the number of rows of each part.
        numbers: the number of each part in the batch, an array.
    """

    count: int
    rows: int
    numbers: Any


def parts_of(position: Any, parts: int, rows: int | None, name: str) -> Parts:
    """Return the parts whose rows a node has.

    Args:
        position: the step and the number of each row, uint32[rows, 2].
        parts: the number of parts of the batch.
        rows: the number of rows of the batch; by default those of `position`.
        name: the name of the function, for messages.

    Raises:
        PlacerError: if the batch cannot be cut into equal parts.
    """
    own = len(position)
    total = own if rows is None else rows
    size = total // parts
    if not size or total % parts or own % size:
        raise PlacerError(
            f"{name} computes {parts} parts of equal size, but a batch has {total} rows",
            hint=f"use batches with a multiple of {parts} rows, also the last one of an"
            " evaluation: data.eval.remainder: drop leaves a shorter one out",
        )
    numbers = (position[::size, 1] // size % parts).astype(jnp.int32)
    return Parts(own // size, size, numbers)


def shape_of_parts(
    shape: tuple[int, ...], kind: Kind, count: int, rows: int
) -> tuple[int, ...]:
    """Return the shape of an operand for `count` parts, each with `rows` rows.

    `shape` is its shape for one part.
    """
    if kind == "equal":
        return shape
    return (count * rows, *(shape[1:] if kind == "rows" else shape))


def compute_parts(
    closed: Any,
    split: Split,
    count: int,
    rows: int,
    inputs: Sequence[Any],
    random: Sequence[Any],
) -> list[Any]:
    """Compute a region for several parts.

    Args:
        closed: the jaxpr of one part.
        count: the number of parts.
        rows: the number of rows of a part.
        inputs: the operands for all these parts.
        random: arrays with an element for each part, the last inputs of the jaxpr.
    """
    function = core.jaxpr_as_fun(closed)

    def of_part(*values: Any) -> list[Any]:
        pairs = zip(values, split.operands, strict=False)
        own = [x[0] if kind == "value" else x for x, kind in pairs]
        results = function(*own, *values[len(own) :])
        return [
            jnp.broadcast_to(y, (rows, *y.shape)) if kind == "value" else y
            for y, kind in zip(results, split.results, strict=True)
        ]

    if count == 1:
        return of_part(*inputs, *(x[0] for x in random))
    given = [
        x if kind == "equal" else x.reshape(count, rows, *x.shape[1:])
        for x, kind in zip(inputs, split.operands, strict=True)
    ]
    axes = (*(None if kind == "equal" else 0 for kind in split.operands),)
    mapped = jax.vmap(of_part, in_axes=(*axes, *(0 for _ in random)))
    results = mapped(*given, *random)
    return [
        jnp.sum(y, 0, dtype=y.dtype)
        if kind == "sum"
        else y.reshape(count * rows, *y.shape[2:])
        for y, kind in zip(results, split.results, strict=True)
    ]
