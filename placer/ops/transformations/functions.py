"""Computes the updates of the blocks of one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placer.place.types import TensorType
from placer.plan.settings.training.slicing import Block
from placer.plan.settings.training.transformations import Transformation

Leaves = tuple[dict[str, Any], ...]
"""The state of each block: its leaves by name."""


@dataclass(frozen=True, slots=True)
class BlockFunctions:
    """The functions of a table's blocks; JAX can trace each of them.

    Values and gradients are one array per block. A parameter has a copy of its `own`
    leaves and of the `shared` leaves with each block.

    Attributes:
        init: returns the first leaves for values.
        update: returns the new values and leaves for (values, leaves, gradients, rate).
        averaged: returns the values for evaluations, for (values, leaves); None without
            such a function.
    """

    init: Callable[[Sequence[Any]], Leaves]
    update: Callable[..., tuple[list[Any], Leaves]]
    averaged: Callable[[Sequence[Any], Leaves], list[Any]] | None


def block_functions(
    make: Callable[..., Any],
    types: Mapping[str, TensorType],
    blocks: Sequence[Block],
    planned: Transformation,
    *,
    averaged: Callable[..., Any] | None = None,
    wide: bool,
) -> BlockFunctions:
    """Return the functions that compute the updates of a table's blocks.

    Args:
        make, types, averaged, wide: as for `describe`.
        blocks: the blocks of the table.
        planned: the optimizer in the plan.

    Raises:
        PlacerError: if `make` is not the function that was compiled.
    """
    raise NotImplementedError
