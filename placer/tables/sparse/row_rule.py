"""Applies the optimizer's rule of a table: initializes slots and updates rows."""

from __future__ import annotations

import numpy as np

from placer.plan.settings.sparse.table import SparseTable as Settings
from placer.plan.settings.training.optimizers import read_rule
from placer.tables.optimizer_rules import (
    changing_numbers,
    constant_numbers,
    kernels_of,
    record_of_numbers,
)
from placer.tables.sparse.row_updates import (
    RowUpdate,
    bias_corrections,
    compile_row_update,
)
from placer.tables.sparse.rows import fill_slots
from placer.tables.sparse.state import Array, State


class RowRule:
    """The optimizer's rule of a table.

    Args:
        settings: the settings of the table.
        dtype: float32 or float64.

    Attributes:
        columns: the number of columns of a row, including slots.
        has_scalar: whether the rule stores one number for each row.
        counts_updates: whether the rule needs the number of updates of each row.
    """

    def __init__(self, settings: Settings, dtype: str) -> None:
        self._dim, self._bounds = settings.dim, settings.bounds or (0.0, 0.0)
        self._dtype = np.dtype(dtype)
        rule = read_rule(settings.rule, settings.hyper)
        hyper = self._hyper = rule.hyper
        (kernel,) = kernels_of(rule)
        slots, row_slot = rule.first_slots, rule.row_slot
        self.has_scalar, self.counts_updates = bool(row_slot), "b1" in hyper
        self._first_scalar = self._dtype.type(slots.pop(row_slot, 0.0))
        first = np.array([*slots.values()], self._dtype)
        self._first_slots = np.repeat(first, settings.dim)
        self.columns = settings.dim * (1 + len(slots))
        self._update = compile_row_update(
            RowUpdate(
                kernel,
                settings.dim,
                dtype,
                self.counts_updates,
                row_slot and ("decayed" if self.counts_updates else "sum"),
                settings.bounds is not None,
            )
        )
        self._corrections = (
            bias_corrections(hyper, dtype)
            if self.counts_updates
            else np.empty((0, 3), self._dtype)
        )

    def begin(self, state: State, rows: Array) -> None:
        """Initialize the slots and other numbers of new rows."""
        fill_slots(
            state, rows, np.int64(self._dim), self._first_slots, self._first_scalar
        )

    def update(
        self, state: State, rows: Array, gradients: Array, rate: float, scale: float
    ) -> None:
        """Update the rows that are not below 0; see `compile_row_update`."""
        real = self._dtype.type
        constants = constant_numbers(self._hyper, decays=True)
        changing = changing_numbers(self._hyper, 1, rate, self._dtype)
        numbers = np.array(constants._replace(**changing), self._dtype)
        low, high = self._bounds
        self._update(
            rows,
            np.ascontiguousarray(gradients, self._dtype),
            real(scale),
            numbers.view(record_of_numbers(self._dtype)),
            self._corrections,
            real(low),
            real(high),
            state.values,
            state.scalars,
            state.updates,
        )
