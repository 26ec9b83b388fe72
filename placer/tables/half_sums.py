"""Adds half floats (float16, bfloat16) in float32 and rounds once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.place.types import is_half_float

Array = npt.NDArray[Any]


def dtype_of_sums(dtype: Any) -> np.dtype[Any]:
    """Return the dtype for sums: float32 for half floats, otherwise the same dtype."""
    return np.dtype(np.float32) if is_half_float(dtype) else np.dtype(dtype)


def add_in_float32(total: Any, value: Any) -> Any:
    """Return `total + value` of numpy or JAX arrays; half floats are added in float32."""
    if is_half_float(value.dtype):
        total, value = total.astype(np.float32), value.astype(np.float32)
    return total + value


def add_up(parts: Sequence[Array], out: Array) -> None:
    """Add numpy arrays of the same shape in order, and write the sum to `out`.

    Half floats are added in float32, and the sum is rounded once. Overflows do not cause
    warnings, because the loss shows them.
    """
    kind = dtype_of_sums(out.dtype)
    total = out if out.dtype == kind else np.empty(out.shape, kind)
    with np.errstate(over="ignore", invalid="ignore"):
        if len(parts) == 1:
            total[...] = parts[0]
        else:
            np.add(parts[0], parts[1], out=total, dtype=kind)
            for part in parts[2:]:
                np.add(total, part, out=total, dtype=kind)
        if total is not out:
            out[...] = total


def mean_of(parts: Sequence[Array], divisor: int, dtype: np.dtype[Any]) -> Array:
    """Add numpy arrays of the same shape in order, divide by `divisor`, and round once.

    Half floats are added and divided in float32.

    Args:
        parts: the arrays.
        divisor: the divisor.
        dtype: the dtype of the result.
    """
    total = np.empty(parts[0].shape, dtype_of_sums(dtype))
    add_up(parts, total)
    if divisor != 1:
        total /= divisor
    rounded: Array = round_to(total, dtype)
    return rounded


def round_to(total: Any, dtype: np.dtype[Any]) -> Any:
    """Round a sum to `dtype`. Too large values become infinite, without a warning.

    A sum that already has this dtype is returned unchanged.
    """
    if total.dtype == dtype:
        return total
    with np.errstate(over="ignore", invalid="ignore"):
        return total.astype(dtype)
