"""Arrays that XLA takes without a copy: their memory begins on a 64-byte boundary."""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import DTypeLike

ALIGNMENT = 64


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """A new C-contiguous array, uninitialised, 64-byte aligned."""
    kind = np.dtype(dtype)
    nbytes = prod(shape) * kind.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes].view(kind).reshape(shape)


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """A new C-contiguous array of zeros, 64-byte aligned."""
    array = empty(shape, dtype)
    array.fill(0)
    return array


def is_aligned(array: np.ndarray) -> bool:
    """Whether XLA can take this array as it lies: aligned and C-contiguous."""
    return array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous


def padded(elements: int, dtype: DTypeLike) -> int:
    """`elements` rounded up so that what follows them is aligned again."""
    per_line = ALIGNMENT // np.dtype(dtype).itemsize
    return -(-elements // per_line) * per_line
