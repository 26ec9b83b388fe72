"""The first value of a row: a function of the seed, the table, the key and the column.

It has the bits of the same row of a dense parameter. A row that was never stored can so be
read, and one that was forgotten begins again as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from placer.tables.initial.draws import DISTRIBUTIONS, Key, draw_rows
from placer.tables.machine_code import Compiled
from placer.tables.sparse.state import Array

Fill = Callable[[Array, Array, Array], None]
"""Writes the first values of the rows of keys (uint64, [n]) to rows `to` (int64, [n]) of an
array, into its first columns."""


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
        distribution: the name of one of `DISTRIBUTIONS`.
        arguments: its arguments.
        key: the key of the parameter (`parameter_key`).
        dim: the columns of a row.
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
        first, second = np.empty(pairs, np.uint32), np.empty(pairs, np.uint32)
        words = np.empty(2 * pairs)
        for i in range(keys.size):
            row = keys[i]
            upper = np.uint32(row >> np.uint64(32))
            lower = np.uint32(row & np.uint64(0xFFFFFFFF))
            r0, r1 = _threefry(k0, k1, upper, lower)
            for j in range(pairs):
                first[j], second[j] = _threefry(r0, r1, np.uint32(0), np.uint32(j))
            for j in range(pairs):
                words[2 * j] = first[j]
                words[2 * j + 1] = second[j]
            at = to[i]
            for j in range(dim):
                values[at, j] = low + span * ((words[j] + 0.5) * 2.0**-32)

    return Compiled(fill)


@register_jitable
def _rotated(x: Any, left: int) -> Any:
    return np.uint32(x << np.uint32(left)) | np.uint32(x >> np.uint32(32 - left))


@register_jitable
def _four(x: Any, y: Any, a: int, b: int, c: int, d: int) -> Any:
    """Four rounds."""
    x = np.uint32(x + y)
    y = _rotated(y, a) ^ x
    x = np.uint32(x + y)
    y = _rotated(y, b) ^ x
    x = np.uint32(x + y)
    y = _rotated(y, c) ^ x
    x = np.uint32(x + y)
    y = _rotated(y, d) ^ x
    return x, y


@register_jitable
def _threefry(k0: Any, k1: Any, x: Any, y: Any) -> Any:
    """See `placer.tables.initial.threefry`: the same function of four words."""
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
