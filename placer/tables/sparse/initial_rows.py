"""Computes the first values of rows from the seed, the table, the key and the column.

They have the same bits as the row of a dense parameter. A row that was never stored can
therefore be read, and a forgotten row starts again with the same values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba.extending import register_jitable

from placer.tables.initial.draws import DISTRIBUTIONS, Key, draw_rows
from placer.tables.machine_code import Compiled
from placer.tables.sparse.intrinsics import prefetch, rotated
from placer.tables.sparse.state import Array

_BLOCK: Final = 32
"""The number of rows to compute at a time."""
_LINE: Final = 64

Fill = Callable[[Array, Array, Array], None]
"""A function of keys (uint64[n]), rows `to` (int64[n]) and an array. It writes the first
values of the keys to these rows of the array."""


def constant_rows(value: float, dim: int) -> Fill:
    """Return a function that fills rows with a constant."""

    def fill(keys: Array, to: Array, values: Array) -> None:
        values[to, :dim] = value

    return fill


def drawn_rows(
    distribution: str, arguments: tuple[float, float], key: Key, dim: int
) -> Fill:
    """Return a function that fills rows with random values.

    Args:
        distribution: a name in `DISTRIBUTIONS`.
        arguments: the arguments of the distribution.
        key: the key of the parameter (`parameter_key`).
        dim: the number of values of a row.
    """
    if distribution == "uniform":
        return _uniform_rows(*arguments, key, dim)
    draw = DISTRIBUTIONS[distribution](*arguments)

    def fill(keys: Array, to: Array, values: Array) -> None:
        if keys.size:
            values[to, :dim] = draw_rows(draw, key, keys, dim)

    return fill


def _uniform_rows(low: float, high: float, key: Key, dim: int) -> Fill:
    pairs, span = (dim + 1) // 2, high - low
    k0, k1 = key

    def fill(keys: Array, to: Array, values: Array) -> None:
        # Compute the words of _BLOCK rows together, to use vector instructions.
        row_k0, row_k1 = np.full(_BLOCK, k0), np.full(_BLOCK, k1)
        row_x, row_y = np.zeros(_BLOCK, np.uint32), np.zeros(_BLOCK, np.uint32)
        own_k0 = np.empty(_BLOCK * pairs, np.uint32)
        own_k1, x, y = own_k0.copy(), own_k0.copy(), own_k0.copy()
        words = np.empty(2 * pairs)
        base = np.uint64(values.ctypes.data)
        nbytes = np.uint64(values.shape[1] * values.itemsize)
        for first in range(0, keys.size, _BLOCK):
            count = min(_BLOCK, keys.size - first)
            for i in range(count):
                ahead = base + np.uint64(to[first + i]) * nbytes
                for line in range(0, nbytes, _LINE):
                    prefetch(ahead + np.uint64(line))
                row_x[i] = keys[first + i] >> np.uint64(32)
                row_y[i] = keys[first + i] & np.uint64(0xFFFFFFFF)
            _hash_words(row_k0, row_k1, row_x, row_y)
            for i in range(_BLOCK):
                for j in range(pairs):
                    own_k0[i * pairs + j] = row_x[i]
                    own_k1[i * pairs + j] = row_y[i]
                    x[i * pairs + j] = 0
                    y[i * pairs + j] = j
            _hash_words(own_k0, own_k1, x, y)
            for i in range(count):
                for j in range(pairs):
                    words[2 * j] = x[i * pairs + j]
                    words[2 * j + 1] = y[i * pairs + j]
                at = to[first + i]
                for j in range(dim):
                    values[at, j] = low + span * ((words[j] + 0.5) * 2.0**-32)

    return Compiled(fill)


@register_jitable
def _hash_words(k0: Array, k1: Array, x: Array, y: Array) -> None:
    """Replace words (x, y) with their hash under keys (k0, k1); all are uint32[n]."""
    for i in range(x.size):
        x[i], y[i] = _threefry(k0[i], k1[i], x[i], y[i])


@register_jitable
def _four(x: Any, y: Any, a: int, b: int, c: int, d: int) -> Any:
    """Compute four rounds of threefry with rotations a, b, c and d."""
    x = np.uint32(x + y)
    y = rotated(y, np.uint32(a)) ^ x
    x = np.uint32(x + y)
    y = rotated(y, np.uint32(b)) ^ x
    x = np.uint32(x + y)
    y = rotated(y, np.uint32(c)) ^ x
    x = np.uint32(x + y)
    y = rotated(y, np.uint32(d)) ^ x
    return x, y


@register_jitable
def _threefry(k0: Any, k1: Any, x: Any, y: Any) -> Any:
    """Compute the same function as `placer.tables.initial.threefry`, for single words."""
    k2 = np.uint32(k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    x, y = np.uint32(x + k0), np.uint32(y + k1)
    x, y = _four(x, y, 13, 15, 26, 6)
    x, y = np.uint32(x + k1), np.uint32(y + k2 + np.uint32(1))
    x, y = _four(x, y, 17, 29, 16, 24)
    x, y = np.uint32(x + k2), np.uint32(y + k0 + np.uint32(2))
    x, y = _four(x, y, 13, 15, 26, 6)
    x, y = np.uint32(x + k0), np.uint32(y + k1 + np.uint32(3))
    x, y = _four(x, y, 17, 29, 16, 24)
    x, y = np.uint32(x + k1), np.uint32(y + k2 + np.uint32(4))
    x, y = _four(x, y, 13, 15, 26, 6)
    return np.uint32(x + k2), np.uint32(y + k0 + np.uint32(5))
