"""What node programs use of a table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np


class ProgramTable(Protocol):
    """Blocks of parameters on one node as a program uses them.

    A table is used by one thread at a time. Arrays are numpy arrays or JAX arrays, one
    per block, of the block's shape and the table's dtype; RunError for others.
    """

    name: str
    dtype: np.dtype[Any]

    def values(self) -> tuple[Any, ...]:
        """Return the values of the blocks."""

    def load(self, values: Sequence[Any]) -> None:
        """Replace the values; slots and step count stay as they are."""

    def update(
        self, gradients: Sequence[Any], *, learning_rate: float, scale: Any = None
    ) -> None:
        """Apply one gradient per block.

        Args:
            gradients: one array per block.
            learning_rate: the learning rate of this update.
            scale: a factor of the gradients, such as that of clipping: one for all, or
                one per block.
        """

    def compute_directions(
        self, gradients: Sequence[Any], *, scale: Any = None
    ) -> tuple[Any, ...]:
        """Compute the update direction of each block: the first phase of a two-phase
        rule.

        This updates slots, but no values; `apply_directions` does that. Arguments are
        those of `update`.
        """

    def apply_directions(self, ratios: Sequence[Any], *, learning_rate: float) -> None:
        """Apply the update directions: the second phase of a two-phase rule.

        `ratios` has the trust ratio of each block's parameter (the op `trust_ratio`).
        """


class StreamedTable(Protocol):
    """A table that is updated in chunks, as gradients arrive."""

    block_of_gradient: dict[str, int]
    """The number of the block that each gradient is for, by the gradient's name."""

    def update_in_chunks(
        self, *, learning_rate: float, scale: Any = None
    ) -> AbstractContextManager[Any]:
        """An update whose `apply` takes the elements of each block in order."""
