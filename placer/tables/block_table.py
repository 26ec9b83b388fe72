"""What a table in host memory and a table on devices have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import ml_dtypes  # noqa: F401  (numpy knows bfloat16 by it)
import numpy as np
import numpy.typing as npt

from placer.errors import RunError
from placer.place.types import is_half_float
from placer.plan.plan import Table
from placer.plan.settings.training.optimizers import read_rule
from placer.tables.optimizer_rules import changing_numbers, constant_numbers, kernels_of
from placer.tables.protocol import ProgramTable

Array = npt.NDArray[Any]


Snapshot: TypeAlias = dict[str, tuple[Any, ...]]


class BlockTable(ProgramTable, ABC):
    """The blocks of one optimizer on one node, with their slots and step count.

    A table without blocks does nothing.

    Args:
        planned: the table in the plan. Without a rule it is updated by `sgd`.
        dtype: the dtype of values, slots and gradients: a float of 16, 32 or 64 bits.

    Attributes:
        blocks: the blocks, in the order of all sequences of arrays.
        rule: the rule, with its hyperparameters.
        step: how many updates there were.
        compute_dtype: the dtype in which updates are computed: float32 for half floats,
            which are rounded once per update.
    """

    def __init__(self, planned: Table, dtype: str) -> None:
        self.name = planned.name
        self.blocks = planned.blocks
        self.rule = read_rule(planned.rule or "sgd", planned.hyper)
        self._hyper = self.rule.hyper
        self.dtype = np.dtype(dtype)
        self.compute_dtype = np.dtype("float32") if is_half_float(dtype) else self.dtype
        self.kernels = kernels_of(self.rule)
        self.load_updates([0] * len(self.blocks))

    @abstractmethod
    def slots(self) -> dict[str, tuple[Array, ...]]:
        """Return copies of the optimizer's state: for each slot, one numpy array per
        block."""

    @abstractmethod
    def editing(self) -> AbstractContextManager[tuple[Array, ...]]:
        """Change the values of the blocks in the body of a `with` statement, which gets
        them as arrays of their shapes; they are current after it. Slots and step count
        stay as they are."""

    @abstractmethod
    def load_slots(self, slots: Mapping[str, Sequence[Any]]) -> None:
        """Replace the optimizer's state, of the form that `slots` returns.

        Values and step count stay as they are. Raises RunError for other slots.
        """

    @abstractmethod
    def snapshot(
        self, blocks: Sequence[int], reuse: Snapshot | None = None
    ) -> Snapshot:
        """Return the state of blocks, which later updates do not change.

        Args:
            blocks: the numbers of the blocks.
            reuse: an earlier snapshot of the same blocks that is not needed any more,
                whose memory may be used again.

        Returns:
            By VALUES and the names of the slots, one array per block. An array on a
            device is copied to host memory when numpy reads it.
        """

    @abstractmethod
    def warm_up(self, sources: int = 1) -> None:
        """Compile what an update by gradients of `sources` nodes needs, so that the
        first update is as fast as the others."""

    def check_fits(self, arrays: Sequence[Any], noun: str) -> list[Any]:
        """Return `arrays` as a list after checking that they fit the blocks.

        `noun` is what the message calls an array, such as `gradient`. Raises RunError
        unless there is one array per block, of the block's shape and the table's dtype.
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
                    f" the block is {self.dtype}{list(block.shape)}"
                )
        return list(arrays)

    def check_slots(
        self, slots: Mapping[str, Sequence[Any]]
    ) -> Mapping[str, Sequence[Any]]:
        """Return `slots` after checking that they are those of the table, and that
        their arrays fit the blocks; RunError otherwise."""
        own = self.rule.first_slots
        if slots.keys() != own.keys():
            raise RunError(
                f"table {self.name} has {_list_slots(own)},"
                f" but the argument has {_list_slots(slots)}"
            )
        return {slot: self.check_fits(arrays, slot) for slot, arrays in slots.items()}

    def scale_per_block(self, scale: Any) -> Sequence[Any]:
        """Return the factor of the gradient of each block."""
        if not isinstance(scale, list | tuple):
            return [1.0 if scale is None else scale] * len(self.blocks)
        assert len(scale) == len(self.blocks), (self.name, len(scale))
        return scale

    @property
    def updates(self) -> tuple[int, ...]:
        """How many updates of each block there were."""
        return tuple(self.step - begun for begun in self._begun)

    def load_updates(self, updates: Sequence[int]) -> None:
        """Set how many updates of each block there were: fewer for a block whose slots
        started later than those of others."""
        assert len(updates) == len(self.blocks), (self.name, updates)
        self.step = max(updates, default=0)
        self._begun = tuple(self.step - count for count in updates)
        # Blocks of the same kind have the same numbers in an update.
        kinds = [(b.decays, at) for b, at in zip(self.blocks, self._begun, strict=True)]
        index_of = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
        self._kinds = [
            (constant_numbers(self._hyper, decays=decays), begun)
            for decays, begun in index_of
        ]
        self._kind_of_block = tuple(index_of[kind] for kind in kinds)

    def next_numbers(self, rate: float) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        """Return the `StepNumbers` of the next update, as arrays of the compute dtype,
        and for each block the index of its own: they depend on the number of its
        updates, and on whether it has weight decay."""
        dtype, numbers = self.compute_dtype, []
        for constants, begun in self._kinds:
            changing = changing_numbers(self._hyper, self.step + 1 - begun, rate, dtype)
            numbers.append(np.array(constants._replace(**changing), dtype))
        return tuple(numbers), self._kind_of_block


def _list_slots(slots: Mapping[str, object]) -> str:
    return " and ".join(slots) if slots else "no slots"
