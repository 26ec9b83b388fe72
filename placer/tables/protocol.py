"""What every table offers: to node programs, and to the runtime around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from placer.tables.block import ParameterBlock


class ProgramTable(Protocol):
    """Blocks of parameters on one node as a program uses them.

    Used by one thread at a time. Arrays are numpy arrays or JAX arrays, one a block, of
    the block's shape and the table's dtype; RunError for others.
    """

    name: str

    def values(self) -> tuple[Any, ...]:
        """The values of the blocks."""

    def load(self, values: Sequence[Any]) -> None:
        """Set the values; slots and step stay as they are."""

    def update(
        self, gradients: Sequence[Any], *, learning_rate: float, scale: Any = None
    ) -> None:
        """Apply one gradient a block, multiplied by `scale`: one number for all blocks,
        or one for each."""

    def compute_directions(
        self, gradients: Sequence[Any], *, scale: Any = None
    ) -> tuple[Any, ...]:
        """The first phase of a two-phase rule: the update direction of each block."""

    def apply_directions(self, ratios: Sequence[Any], *, learning_rate: float) -> None:
        """The second phase: apply the directions, times one trust ratio a block."""


@runtime_checkable
class StreamedTable(Protocol):
    """A table that is updated in chunks, as gradients arrive."""

    block_of_gradient: dict[str, int]
    """The number of the block that each gradient is for, by the gradient's name."""

    def update_in_chunks(
        self, *, learning_rate: float, scale: Any = None
    ) -> AbstractContextManager[Any]:
        """An update whose `apply` takes the elements of each block in order."""


class Table(ProgramTable, Protocol):
    """A table with its optimizer state, which can be saved and loaded."""

    blocks: tuple[ParameterBlock, ...]
    step: int
    """How many updates there were."""

    def slots(self) -> dict[str, tuple[Any, ...]]:
        """Copies of the optimizer state: for each slot one numpy array a block."""

    def load_slots(self, slots: Mapping[str, Sequence[Any]]) -> None:
        """Set the optimizer state, as `slots` returns it; values and step stay."""

    def warm_up(self, sources: int = 1) -> None:
        """Compile what an update needs whose gradients come from so many nodes."""
