"""Defines the methods of tables that node programs use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np


class ProgramTable(Protocol):
    """A table with blocks of parameters, as node programs use it.

    Only one thread at a time may use a table. All sequences contain one numpy or JAX array
    per block, of the block's shape and the table's dtype. Methods raise RunError for arrays
    that do not fit.
    """

    name: str
    dtype: np.dtype[Any]

    def values(self) -> tuple[Any, ...]:
        """Return the values of the blocks."""

    def evaluation_values(self) -> tuple[Any, ...]:
        """Return the values of the blocks for evaluations and exports."""

    def load(self, values: Sequence[Any]) -> None:
        """Replace the values. Slots and step count do not change."""

    def update(
        self, gradients: Sequence[Any], *, learning_rate: float, scale: Any = None
    ) -> None:
        """Apply one gradient per block.

        Args:
            gradients: one array per block.
            learning_rate: the learning rate of this update.
            scale: a factor for the gradients, such as from clipping: one number, or one per
                block.
        """

    def compute_directions(
        self, gradients: Sequence[Any], *, scale: Any = None
    ) -> tuple[Any, ...]:
        """Run the first phase of a two-phase rule, and return the update directions.

        This updates slots but not values; `apply_directions` updates values. The arguments have the
        same meaning as in `update`.
        """

    def apply_directions(self, ratios: Sequence[Any], *, learning_rate: float) -> None:
        """Run the second phase of a two-phase rule: apply the update directions.

        `ratios` contains the trust ratio of each block's parameter (the op `trust_ratio`).
        """


class StreamedTable(Protocol):
    """A table that can be updated in chunks as gradients arrive."""

    block_of_gradient: dict[str, int]
    """The number of the block for each gradient, by the gradient's name."""

    def update_in_chunks(
        self, *, learning_rate: float, scale: Any = None
    ) -> AbstractContextManager[Any]:
        """Return a context manager for an update; its `apply` takes elements in order."""
