"""Single values of Python and of numpy: no value, and markers of a missing one.

`prepare.py` of an exported model has copies of these functions.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np


def scalar_of(value: Any) -> Any:
    """Return an array without dimensions as a scalar of numpy, and others as they are.

    The scalar does not change if the source of the array uses its memory again.
    """
    is_array = getattr(value, "ndim", None) == 0 and not isinstance(value, np.generic)
    return np.asarray(value)[()] if is_array else value


def is_absent(value: Any) -> bool:
    """Return whether a value is None, NaN, NaT or the NA of pandas; no array or list is."""
    if value is None:
        return True
    if isinstance(value, str | bytes | list | tuple | dict):
        return False
    if getattr(value, "ndim", None):
        return False
    try:
        return bool(value != value)
    except TypeError:  # the NA of pandas, of which no comparison is true or false
        return True


def is_marker(value: Any, numbers: Collection[float]) -> bool:
    """Return whether a scalar is one of some numbers, compared in its own dtype.

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
    """Return the floats of a dtype that are nearest to some numbers: -999.1 in a column
    of float32 is not -999.1. Numbers that only infinity or zero is nearest to are left
    out."""
    wanted = np.array([*numbers], np.float64)
    with np.errstate(over="ignore", under="ignore"):
        nearest = wanted.astype(dtype)
    is_near = np.isfinite(nearest) & ((nearest != 0) == (wanted != 0))
    return np.asarray(nearest[is_near])
