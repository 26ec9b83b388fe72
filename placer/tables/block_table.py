"""Defines the base class of dense tables in host memory and on devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import ml_dtypes  # noqa: F401  (adds bfloat16 to numpy)
import numpy as np
import numpy.typing as npt

from placer.errors import RunError
from placer.place.types import is_half_float
from placer.plan.plan import Table
from placer.tables.protocol import ProgramTable

Array = npt.NDArray[Any]


Snapshot: TypeAlias = dict[str, tuple[Any, ...]]


class BlockTable(ProgramTable, ABC):
    """The blocks of one optimizer on one node, with their slots and step count.

    A table may have no blocks; its methods then do nothing.

    Args:
        planned: the table in the plan.
        dtype: the dtype of values, slots and gradients: a float of 16, 32 or 64 bits.

    Attributes:
        blocks: the blocks. Sequences of arrays have the same order.
        block_of_gradient: the number of the block for each gradient, by the gradient's
            name.
        step: the number of updates so far.
        dtype: the dtype of values, slots and gradients.
        compute_dtype: the dtype of computations: float32 for half floats, which are rounded
            once per update.
    """

    def __init__(self, planned: Table, dtype: str) -> None:
        self.name = planned.name
        self.blocks = planned.blocks
        self.block_of_gradient = {
            block.gradient: i for i, block in enumerate(self.blocks) if block.gradient
        }
        self.dtype = np.dtype(dtype)
        self.compute_dtype = np.dtype("float32") if is_half_float(dtype) else self.dtype
        self.load_updates([0] * len(self.blocks))

    def evaluation_values(self) -> tuple[Any, ...]:
        """Return the values of the blocks for evaluations and exports."""
        return self.values()

    @abstractmethod
    def slots(self) -> dict[str, tuple[Array, ...]]:
        """Return copies of the optimizer's slots: for each slot, one array per block.

        A block without a slot has None.
        """

    @abstractmethod
    def initial_slots(self) -> Mapping[str, tuple[Any, ...]]:
        """Return the slots of a run that begins with the current values.

        The caller loads slots next: the slots of the table may change.
        """

    @abstractmethod
    def editing(self) -> AbstractContextManager[tuple[Array, ...]]:
        """Return a context manager that yields the values of the blocks as writable arrays.

        Changes become current when the context ends. Slots and step count do not change.
        """

    @abstractmethod
    def load_slots(self, slots: Mapping[str, Sequence[Any]]) -> None:
        """Replace the optimizer's slots, in the form that `slots` returns.

        Values and step count do not change. Raises RunError if names, shapes or dtypes do not fit.
        """

    @abstractmethod
    def snapshot(
        self, blocks: Sequence[int], reuse: Snapshot | None = None
    ) -> Snapshot:
        """Return a copy of the state of blocks. Later updates do not change it.

        Args:
            blocks: the numbers of the blocks.
            reuse: an old snapshot of the same blocks whose memory may be reused.

        Returns:
            One array per block for VALUES and for each slot, by name; None for a block
            without the slot. An array on a device is copied to host memory when numpy
            reads it.
        """

    @abstractmethod
    def warm_up(self, sources: int = 1) -> None:
        """Compile an update with gradients of `sources` nodes, before the first update."""

    def check_fits(self, arrays: Sequence[Any], noun: str) -> list[Any]:
        """Check that arrays fit the blocks in number, shape and dtype, and return them as a list.

        `noun` is the word for an array in messages, such as `gradient`. Raises RunError if an array
        does not fit.
        """
        if len(arrays) != len(self.blocks):
            raise RunError(
                f"table {self.name}: {len(arrays)} {noun}s for {len(self.blocks)} blocks"
            )
        for block, array in zip(self.blocks, arrays, strict=True):
            if array.shape != block.shape or array.dtype != self.dtype:
                raise RunError(
                    f"table {self.name}: {noun} of {block.name} is"
                    f" {array.dtype}{list(array.shape)},"
                    f" but the block is {self.dtype}{list(block.shape)}"
                )
        return list(arrays)

    def scale_per_block(self, scale: Any) -> Sequence[Any]:
        """Return the factor of the gradient of each block."""
        if not isinstance(scale, list | tuple):
            return [1.0 if scale is None else scale] * len(self.blocks)
        assert len(scale) == len(self.blocks), (self.name, len(scale))
        return scale

    @property
    def updates(self) -> tuple[int, ...]:
        """The number of updates of each block."""
        return tuple(self.step - begun for begun in self._begun)

    def load_updates(self, updates: Sequence[int]) -> None:
        """Set the number of updates of each block. It can differ if slots started later."""
        assert len(updates) == len(self.blocks), (self.name, updates)
        self.step = max(updates, default=0)
        self._begun = tuple(self.step - count for count in updates)
