"""Sums of half floats (float16, bfloat16) are made in float32 and rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_half(dtype: np.dtype[Any]) -> bool:
    """Whether it is a float of 16 bits."""
    return dtype.itemsize == 2 and not np.issubdtype(dtype, np.integer)


def wide_sum(total: Any, value: Any) -> Any:
    """`total + value`, of numpy's or JAX's arrays; in float32 where `value` is a half."""
    if is_half(value.dtype):
        total, value = total.astype(np.float32), value.astype(np.float32)
    return total + value


def rounded(total: Any, dtype: np.dtype[Any]) -> Any:
    """The total as a half. One that is too large for it is inf, without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return total.astype(dtype)
