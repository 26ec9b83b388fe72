"""Single Python and NumPy values: missing values, and their markers.

`prepare.py` of an exported model has copies of these functions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np


def scalar_of(value: Any) -> Any:
    """Return an array without dimensions as a NumPy scalar, and other values unchanged.

    The scalar stays the same if the source reuses the memory of its array.
    """
    is_array = getattr(value, "ndim", None) == 0 and not isinstance(value, np.generic)
    return np.asarray(value)[()] if is_array else value


def is_absent(value: Any) -> bool:
    """Return True if a value is None, NaN, NaT or pandas' NA; arrays and lists are not."""
    if value is None:
        return True
    if isinstance(value, str | bytes | list | tuple | dict):
        return False
    if getattr(value, "ndim", None):
        return False
    try:
        return bool(value != value)
    except TypeError:  # comparisons with pandas' NA are neither true nor false
        return True


def is_marker(value: Any, numbers: Collection[float]) -> bool:
    """Return True if a scalar is one of some numbers, compared in its own dtype.

    A boolean is never a marker.
    """
    if isinstance(value, bool | np.bool_) or getattr(value, "ndim", None):
        return False
    if isinstance(value, np.generic) and value.dtype.kind in "fV":  # V: bfloat16
        return bool((nearest_numbers(numbers, value.dtype) == value).any())
    return isinstance(value, int | float | np.integer) and value in numbers


def nearest_numbers(
    numbers: Collection[float], dtype: np.dtype[np.generic]
) -> np.ndarray:
    """Return the floats of a dtype that are nearest to some numbers.

    For example, -999.1 is not exact in float32. Numbers that round to infinity or zero
    are left out.
    """
    wanted = np.array([*numbers], np.float64)
    with np.errstate(over="ignore", under="ignore"):
        nearest = wanted.astype(dtype)
    is_near = np.isfinite(nearest) & ((nearest != 0) == (wanted != 0))
    return np.asarray(nearest[is_near])
