"""Sums of half floats (float16, bfloat16): added in float32, rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np

from placer.types import is_half_float


def add_in_float32(total: Any, value: Any) -> Any:
    """Return `total + value`, of numpy or JAX arrays of one shape: in float32 if
    `value` has half floats."""
    if is_half_float(value.dtype):
        total, value = total.astype(np.float32), value.astype(np.float32)
    return total + value


def round_to(total: Any, dtype: np.dtype[Any]) -> Any:
    """Round a float32 sum to half floats; one that is too large becomes inf, without a
    warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return total.astype(dtype)
