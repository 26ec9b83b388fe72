"""Defines the base class of dense tables with the update rules of placer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.errors import RunError
from placer.plan.plan import Table
from placer.plan.settings.training.optimizers import read_rule
from placer.tables.block_table import BlockTable
from placer.tables.optimizer_rules import changing_numbers, constant_numbers, kernels_of

Array = npt.NDArray[Any]


class RuleTable(BlockTable):
    """A dense table with an update rule of placer.

    Args:
        planned: the table in the plan. Without a rule, `sgd` updates it.
        dtype: the dtype of values, slots and gradients: a float of 16, 32 or 64 bits.

    Attributes:
        rule: the rule with its hyperparameters.
        kernels: the kernels of the rule: one, or two for a two-phase rule.
    """

    def __init__(self, planned: Table, dtype: str) -> None:
        self.rule = read_rule(planned.rule or "sgd", planned.hyper)
        self._hyper = self.rule.hyper
        self.kernels = kernels_of(self.rule)
        super().__init__(planned, dtype)

    def initial_slots(self) -> dict[str, tuple[Array, ...]]:
        return {
            slot: tuple(
                np.full(block.shape, start, self.dtype) for block in self.blocks
            )
            for slot, start in self.rule.first_slots.items()
        }

    def check_slots(
        self, slots: Mapping[str, Sequence[Any]]
    ) -> Mapping[str, Sequence[Any]]:
        """Check that slots fit the table and return them; raise RunError if they do not."""
        own = self.rule.first_slots
        if slots.keys() != own.keys():
            raise RunError(
                f"table {self.name} has {_list_slots(own)},"
                f" but the argument has {_list_slots(slots)}"
            )
        return {slot: self.check_fits(arrays, slot) for slot, arrays in slots.items()}

    def load_updates(self, updates: Sequence[int]) -> None:
        super().load_updates(updates)
        # Blocks of the same kind share the numbers of an update.
        kinds = [(b.decays, at) for b, at in zip(self.blocks, self._begun, strict=True)]
        index_of = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
        self._kinds = [
            (constant_numbers(self._hyper, decays=decays), begun)
            for decays, begun in index_of
        ]
        self._kind_of_block = tuple(index_of[kind] for kind in kinds)

    def next_numbers(self, rate: float) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        """Return the distinct `StepNumbers` of the next update, and each block's index in them.

        The numbers of a block depend on its number of updates and on weight decay.
        """
        dtype, numbers = self.compute_dtype, []
        for constants, begun in self._kinds:
            changing = changing_numbers(self._hyper, self.step + 1 - begun, rate, dtype)
            numbers.append(np.array(constants._replace(**changing), dtype))
        return tuple(numbers), self._kind_of_block


def _list_slots(slots: Mapping[str, object]) -> str:
    return " and ".join(slots) if slots else "no slots"
