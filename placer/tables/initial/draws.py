"""Random elements of a parameter: the same bits for a slice, a row and the whole.

An element is a function of (seed, parameter name, leading index, offset in the row).
The name and the seed give a key; the key and the leading index (64 bits) give the row's
key; the row's key and the number of a pair of neighbours in the row give two words of
32 bits, one for each of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from placer.tables.initial.threefry import Words, threefry2x32

Key = tuple[np.uint32, np.uint32]
Floats = NDArray[np.float64]
Draw = Callable[[Words, Words], tuple[Floats, Floats]]

_CHUNK = 1 << 14  # pairs worked on at once: a few arrays that stay in the L2 cache


def key_of(seed: int, name: str) -> Key:
    """The key of a parameter."""
    digest = sha256(f"{seed}/{name}".encode()).digest()
    k0, k1 = np.frombuffer(digest, "<u4", count=2)
    return np.uint32(k0), np.uint32(k1)


def fill(out: np.ndarray, draw: Draw, key: Key, start: int, row: int) -> None:
    """Fill `out` [n] with the elements from flat index `start` on, rows `row` long."""
    in_row = (row + 1) // 2  # pairs of a row; the last of an odd row has one element
    odd = row % 2

    def element(pair: int) -> int:
        """The flat index of the first element of a pair."""
        return pair // in_row * row + pair % in_row * 2

    def pair_of(flat: int) -> int:
        return flat // row * in_row + flat % row // 2

    stop = start + out.size
    end = pair_of(stop - 1) + 1
    for first in range(pair_of(start), end, _CHUNK):
        last = min(first + _CHUNK, end)
        both = np.empty((last - first, 2))
        pairs = np.arange(first, last, dtype=np.int64)
        rows = pairs // in_row
        offsets = pairs - rows * in_row
        both[:, 0], both[:, 1] = draw(*_words(key, rows, offsets))
        flat = both.ravel()
        if odd:
            keep = np.ones_like(both, dtype=bool)
            keep[:, 1] = offsets != in_row - 1
            flat = flat[keep.ravel()]
        at = element(first)
        low, high = max(start, at), min(stop, at + flat.size)
        out[low - start : high - start] = flat[low - at : high - at]


def _words(
    key: Key,
    rows: NDArray[np.int64],
    offsets: NDArray[np.int64],
) -> tuple[Words, Words]:
    """The two words of each pair, given as its row and its number in the row."""
    first = int(rows[0])
    distinct = np.arange(first, int(rows[-1]) + 1, dtype=np.uint64)
    base = (np.asarray(key[0]), np.asarray(key[1]))
    low = (distinct & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (distinct >> np.uint64(32)).astype(np.uint32)
    k0, k1 = threefry2x32(base, (high, low))
    if distinct.size > 1:
        spread = rows - first
        k0, k1 = k0[spread], k1[spread]
    zero = np.zeros(1, np.uint32)
    return threefry2x32((k0, k1), (zero, offsets.astype(np.uint32)))


def _unit(words: Words) -> Floats:
    """Uniform on (0, 1): the middles of 2**32 equal intervals."""
    unit = words.astype(np.float64)
    unit += 0.5
    unit *= 2.0**-32
    return unit


def uniform(low: float, high: float) -> Draw:
    """Uniform on [low, high]."""

    def draw(a: Words, b: Words) -> tuple[Floats, Floats]:
        return low + (high - low) * _unit(a), low + (high - low) * _unit(b)

    return draw


def normal(mean: float, std: float) -> Draw:
    """Box and Muller (1958): two uniforms give two independent normals."""

    def draw(a: Words, b: Words) -> tuple[Floats, Floats]:
        radius = std * np.sqrt(-2.0 * np.log(_unit(a)))
        angle = (2.0 * np.pi) * _unit(b)
        return mean + radius * np.cos(angle), mean + radius * np.sin(angle)

    return draw


def truncated_normal(mean: float, std: float) -> Draw:
    """The inverse of the distribution function, between mean - 2 std and mean + 2 std."""
    from scipy.special import ndtr, ndtri  # imported late: it takes a while

    low = ndtr(-2.0)

    def draw(a: Words, b: Words) -> tuple[Floats, Floats]:
        cut = (ndtri(low + (1.0 - 2.0 * low) * _unit(words)) for words in (a, b))
        left, right = (mean + std * normal for normal in cut)
        return left, right

    return draw


DRAWS: dict[str, Callable[[float, float], Draw]] = {
    "uniform": uniform,
    "normal": normal,
    "truncated_normal": truncated_normal,
}
"""The distributions, each with its two arguments: low and high, or mean and std."""
