"""Arrays of Python values with 64-bit whole numbers."""

from __future__ import annotations

from typing import Any

import numpy as np


def to_array(values: Any) -> np.ndarray:
    """Return an array of a number, a list or an array.

    NumPy would round a list with numbers beyond int64 to floats. Here they become
    uint64.
    """
    array = np.asarray(values)
    if array.dtype == np.float64 and not isinstance(values, np.ndarray | np.generic):
        objects = np.asarray(values, object)
        if all(isinstance(x, int) and 0 <= x < 1 << 64 for x in objects.flat):
            return objects.astype(np.uint64)
    return array
