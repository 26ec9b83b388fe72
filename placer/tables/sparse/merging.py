"""Sums rows of a batch by key, so that each key is looked up and updated once.

Keys are numbered in the order of their first occurrences, and rows are added in order. The
bits therefore do not depend on how the work is divided.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from placer.tables.machine_code import compiled
from placer.tables.sparse.hashing import U64, mix
from placer.tables.sparse.state import Array


@register_jitable
def _number_of(key: Any, slots: Array, shift: Any, distinct: Array, count: Any) -> Any:
    """Return the number of a key. A new key is added with the number `count`."""
    mask = U64(slots.size - 1)
    at = mix(key) >> shift
    while True:
        number = slots[at]
        if number == 0:
            slots[at] = count + 1
            distinct[count] = key
            return count
        if distinct[number - 1] == key:
            return number - 1
        at = (at + U64(1)) & mask


@compiled
def _number(keys: Array, slots: Array, shift: Any, distinct: Array, of: Array) -> Any:
    count = 0
    for i in range(keys.size):
        number = _number_of(keys[i], slots, shift, distinct, count)
        count = max(count, number + 1)
        of[i] = number
    return count


@compiled
def _sum_rows(rows: Array, numbers: Array, scales: Array, sums: Array) -> None:
    for i in range(numbers.size):
        number = numbers[i]
        if scales.size:
            for j in range(rows.shape[1]):
                sums[number, j] += scales[i] * rows[i, j]
        else:
            for j in range(rows.shape[1]):
                sums[number, j] += rows[i, j]


def number_keys(keys: Array) -> tuple[Array, Array]:
    """Number the distinct keys of a batch in the order of their first occurrences.

    Args:
        keys: uint64 keys, of shape [n].

    Returns:
        The distinct keys, of shape [m], and the number of each key, int32 of shape [n].
    """
    bits = max(4, (2 * max(1, keys.size) - 1).bit_length())
    slots = np.zeros(1 << bits, np.int32)
    distinct = np.empty(keys.size, np.uint64)
    numbers = np.empty(keys.size, np.int32)
    count = _number(keys, slots, U64(64 - bits), distinct, numbers)
    return distinct[:count], numbers


_UNSCALED = np.empty(0)


def sum_rows(
    rows: Array, numbers: Array, count: int, scales: Array | None = None
) -> Array:
    """Sum the rows with the same number, in order.

    Args:
        rows: an array of shape [n, width].
        numbers: the number of each row, int32[n], below `count`.
        count: the number of sums.
        scales: a factor for each row, of shape [n] and the dtype of the rows.

    Returns:
        The sums, of shape [count, width].
    """
    sums = np.zeros((count, rows.shape[1]), rows.dtype)
    add_rows(rows, numbers, sums, scales)
    return sums


def add_rows(
    rows: Array, numbers: Array, sums: Array, scales: Array | None = None
) -> None:
    """Add each row to the sum with its number, in order; see `sum_rows`."""
    if scales is None:
        scales = _UNSCALED.astype(rows.dtype)
    _sum_rows(rows, numbers, scales, sums)
