"""Arrays that XLA can use without a copy, because they start at a multiple of 64 bytes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from math import prod

import numpy as np
from numpy.typing import DTypeLike

ALIGNMENT = 64
"""The alignment that XLA needs, in bytes."""


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return a new uninitialized C-contiguous array, 64-byte aligned."""
    kind = np.dtype(dtype)
    nbytes = prod(shape) * kind.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -address_of(raw) % ALIGNMENT
    return raw[skip : skip + nbytes].view(kind).reshape(shape)


def zeros(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return a new C-contiguous array of zeros, 64-byte aligned."""
    array = empty(shape, dtype)
    array.fill(0)
    return array


def is_aligned(array: np.ndarray) -> bool:
    """Return True if XLA can use this array without a copy: aligned and C-contiguous."""
    return address_of(array) % ALIGNMENT == 0 and array.flags.c_contiguous


def address_of(array: np.ndarray) -> int:
    """Return the address of the first byte of an array."""
    address: int = array.__array_interface__["data"][0]
    return address


def round_up(nbytes: int) -> int:
    """Return `nbytes` rounded up to a multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def aligned_offsets(
    sizes: Sequence[int], left_out: Container[int] = ()
) -> tuple[tuple[int, ...], int]:
    """Return the offsets of arrays in one buffer with each array aligned, and its
    length. Arrays with an index in `left_out` are not placed."""
    offsets = []
    span = 0
    for i, size in enumerate(sizes):
        offsets.append(span)
        if i not in left_out:
            span += round_up(size)
    return tuple(offsets), span


def pad_length(elements: int, dtype: DTypeLike) -> int:
    """Return `elements` rounded up, so that an array that follows them is aligned."""
    per_line = ALIGNMENT // np.dtype(dtype).itemsize
    return -(-elements // per_line) * per_line
