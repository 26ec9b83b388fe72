"""Updates rows: applies the optimizer's rule once to each row of a batch.

The rules are those of `placer.tables.optimizer_rules`, applied to a row and its slots. Rows
that are not in the batch do not change: this is the lazy form of a rule. Bias corrections
depend on the row's own number of updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numba.extending import register_jitable

from placer.tables.compiled_kernels import elements, store_elements
from placer.tables.machine_code import Compiled
from placer.tables.optimizer_rules import (
    Hyper,
    Kernel,
    StepNumbers,
    arrays_of,
    changing_numbers,
)
from placer.tables.sparse.intrinsics import prefetch
from placer.tables.sparse.state import Array

_AHEAD: Final = 12
"""How many rows ahead the loop prefetches. A row has several cache lines."""
_LINE: Final = 64
_MAX_UINT32: Final = 2**32 - 1


# For each number of arrays: a function that splits a row into its value and slots.
_PARTS: Final[tuple[Callable[[Array, int], tuple[Array, ...]], ...]] = (
    lambda row, dim: (),
    lambda row, dim: (row[:dim],),
    lambda row, dim: (row[:dim], row[dim : 2 * dim]),
    lambda row, dim: (row[:dim], row[dim : 2 * dim], row[2 * dim : 3 * dim]),
    lambda row, dim: (
        row[:dim],
        row[dim : 2 * dim],
        row[2 * dim : 3 * dim],
        row[3 * dim : 4 * dim],
    ),
)


class RowUpdate(NamedTuple):
    """The settings that determine the machine code of a row update.

    Attributes:
        kernel: the function of one element.
        dim: the number of values of a row.
        dtype: float32 or float64.
        counts_updates: whether bias corrections depend on the row's number of updates.
        row_slot: how the rule's number for a row accumulates the mean square of the
            gradient: "sum", "decayed", or "" without such a number
            (`placer.plan.settings.training.optimizers`).
        is_bounded: whether values are clamped to bounds.
    """

    kernel: Kernel
    dim: int
    dtype: str
    counts_updates: bool = False
    row_slot: str = ""
    is_bounded: bool = False


@cache
def compile_row_update(form: RowUpdate) -> Callable[..., None]:
    """Return a compiled function that updates rows.

    Its arguments, in order:

    - `rows`: int64[n]; rows below 0 are skipped.
    - `gradients`: [n, dim]; `scale`: their factor.
    - `numbers`: an array of one record with the numbers of the step.
    - `corrections`: the result of `bias_corrections`.
    - `low` and `high`: the bounds of values.
    - `values`, `scalars` and `updates`: arrays of the state, which it changes.
    """
    rule, dim, dtype, counts_updates, row_slot, is_bounded = form
    real = np.dtype(dtype).type
    element = register_jitable(rule)
    kept = len(arrays_of(rule)) - (2 if row_slot else 0)
    parts_of = register_jitable(_PARTS[kept])
    sums = row_slot == "sum"

    def update(
        rows: Array,
        gradients: Array,
        scale: Any,
        numbers: Array,
        corrections: Array,
        low: Any,
        high: Any,
        values: Array,
        scalars: Array,
        updates: Array,
    ) -> None:
        step = numbers[0]
        b1, b2 = float(step.b1), float(step.b2)
        one = real(1)
        base = np.uint64(values.ctypes.data)
        nbytes = np.uint64(values.shape[1] * values.itemsize)
        for i in range(rows.size):
            if i + _AHEAD < rows.size and rows[i + _AHEAD] >= 0:
                first = base + np.uint64(rows[i + _AHEAD]) * nbytes
                for line in range(0, nbytes, _LINE):
                    prefetch(first + np.uint64(line))
            row = rows[i]
            if row < 0:
                continue
            correction_b1, correction_b2 = step.correction_b1, step.correction_b2
            next_correction = step.next_correction_b1
            if counts_updates:
                count: Any = min(np.int64(updates[row]) + 1, _MAX_UINT32)
                updates[row] = count
                if count < corrections.shape[0]:
                    correction_b1 = corrections[count, 0]
                    correction_b2 = corrections[count, 1]
                    next_correction = corrections[count, 2]
                else:
                    correction_b1 = one - real(math.pow(b1, float(count)))
                    correction_b2 = one - real(math.pow(b2, float(count)))
                    next_correction = one - real(math.pow(b1, count + 1.0))
            n = StepNumbers(
                step.rate,
                step.zero,
                step.weight_decay,
                step.eps,
                step.momentum,
                step.decay,
                step.one_minus_decay,
                step.rho,
                step.one_minus_rho,
                step.b1,
                step.one_minus_b1,
                correction_b1,
                next_correction,
                step.b2,
                step.one_minus_b2,
                correction_b2,
                step.initial_g2sum,
                step.l1,
                step.l2,
                step.beta,
            )
            parts = parts_of(values[row], dim)
            if row_slot:
                total = step.zero
                for j in range(dim):
                    gradient = scale * gradients[i, j]
                    total += gradient * gradient
                mean = total / real(dim)
                before = scalars[row]
                decayed = n.one_minus_b2 * mean + n.b2 * before
                after = before + mean if sums else decayed
                scalars[row] = after
                for j in range(dim):
                    results = element(
                        *elements(parts, j), before, after, scale * gradients[i, j], n
                    )
                    store_elements(parts, j, results)
            else:
                for j in range(dim):
                    results = element(*elements(parts, j), scale * gradients[i, j], n)
                    store_elements(parts, j, results)
            if is_bounded:
                for j in range(dim):
                    parts[0][j] = min(max(parts[0][j], low), high)

    return Compiled(update)


def bias_corrections(hyper: Hyper, dtype: str, updates: int = 4096) -> Array:
    """Return the bias corrections of the first updates of a row.

    Returns:
        An array of shape [updates, 3] with the corrections of b1, of b2, and of b1 for the
        next update. They have the same bits as in a dense table.
    """
    found = np.empty((updates, 3), dtype)
    for count in range(updates):
        numbers = changing_numbers(hyper, count, 0.0, np.dtype(dtype))
        names = ("correction_b1", "correction_b2", "next_correction_b1")
        found[count] = [numbers[name] for name in names]
    return found
