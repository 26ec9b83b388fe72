"""Draws random elements of a parameter; a slice or row has the bits of the whole.

An element is a function of the seed, the parameter name, the leading index, and the offset in
the row. The seed and the name are hashed to the parameter's key. Threefry of this key and the
leading index (64 bits) gives the row's key. Threefry of the row's key and the index of a pair
of neighbors gives two words of 32 bits, one for each neighbor.
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

_CHUNK = (
    1 << 14
)  # pairs to compute at a time; several such arrays fit into the L2 cache


def parameter_key(seed: int, name: str) -> Key:
    """Return the threefry key of a parameter."""
    digest = sha256(f"{seed}/{name}".encode()).digest()
    k0, k1 = np.frombuffer(digest, "<u4", count=2)
    return np.uint32(k0), np.uint32(k1)


def fill_random(out: np.ndarray, draw: Draw, key: Key, start: int, row: int) -> None:
    """Fill `out` with random elements of a parameter.

    Args:
        out: a float array of shape [n].
        draw: converts two arrays of random words to elements.
        key: the key of the parameter.
        start: the flat index of `out[0]` in the parameter.
        row: the number of elements in a row of the parameter.
    """
    # The number of pairs in a row. The last pair of an odd row has only one element.
    in_row = (row + 1) // 2
    odd = row % 2

    def first_of(pair: int) -> int:
        """Return the flat index of the first element of a pair."""
        return pair // in_row * row + pair % in_row * 2

    def pair_of(flat: int) -> int:
        return flat // row * in_row + flat % row // 2

    stop = start + out.size
    end = pair_of(stop - 1) + 1
    for first in range(pair_of(start), end, _CHUNK):
        last = min(first + _CHUNK, end)
        elements = np.empty((last - first, 2))
        pairs = np.arange(first, last, dtype=np.int64)
        rows = pairs // in_row
        offsets = pairs - rows * in_row
        elements[:, 0], elements[:, 1] = draw(*_words(key, rows, offsets))
        flat = elements.ravel()
        if odd:
            exists = np.ones_like(elements, dtype=bool)
            exists[:, 1] = offsets != in_row - 1
            flat = flat[exists.ravel()]
        chunk_start = first_of(first)
        low, high = max(start, chunk_start), min(stop, chunk_start + flat.size)
        out[low - start : high - start] = flat[low - chunk_start : high - chunk_start]


def draw_rows(draw: Draw, key: Key, indices: NDArray[np.uint64], row: int) -> Floats:
    """Return rows of random elements by their leading indices.

    Args:
        draw: converts two arrays of random words to elements.
        key: the key of the parameter.
        indices: the leading index of each row, of shape [n].
        row: the number of elements in a row.

    Returns:
        An array of shape [n, row], with the same bits as from `fill_random`.
    """
    in_row = (row + 1) // 2
    k0, k1 = threefry2x32((np.asarray(key[0]), np.asarray(key[1])), _halves(indices))
    zero = np.zeros(1, np.uint32)
    pairs = np.arange(in_row, dtype=np.uint32)
    words = threefry2x32((k0[:, None], k1[:, None]), (zero, pairs))
    elements = np.stack(draw(*words), axis=-1)
    return elements.reshape(indices.size, 2 * in_row)[:, :row]


def _halves(indices: NDArray[np.uint64]) -> tuple[Words, Words]:
    """Return the upper and the lower words of 64-bit indices."""
    low = (indices & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return (indices >> np.uint64(32)).astype(np.uint32), low


def _words(
    key: Key, rows: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[Words, Words]:
    """Return the two words of each pair, given its row and its index in the row."""
    first = int(rows[0])
    distinct = np.arange(first, int(rows[-1]) + 1, dtype=np.uint64)
    base = (np.asarray(key[0]), np.asarray(key[1]))
    k0, k1 = threefry2x32(base, _halves(distinct))
    if distinct.size > 1:
        index = rows - first
        k0, k1 = k0[index], k1[index]
    zero = np.zeros(1, np.uint32)
    return threefry2x32((k0, k1), (zero, offsets.astype(np.uint32)))


def _unit(words: Words) -> Floats:
    """Map words to floats in (0, 1), the midpoints of 2**32 equal intervals."""
    unit = words.astype(np.float64)
    unit += 0.5
    unit *= 2.0**-32
    return unit


def uniform(low: float, high: float) -> Draw:
    """Return a draw from the uniform distribution on [low, high]."""

    def draw(a: Words, b: Words) -> tuple[Floats, Floats]:
        return low + (high - low) * _unit(a), low + (high - low) * _unit(b)

    return draw


def normal(mean: float, std: float) -> Draw:
    """Return a draw from a normal distribution.

    Two uniform numbers become two independent normal numbers (Box and Muller 1958).
    """

    def draw(a: Words, b: Words) -> tuple[Floats, Floats]:
        radius = std * np.sqrt(-2.0 * np.log(_unit(a)))
        angle = (2.0 * np.pi) * _unit(b)
        return mean + radius * np.cos(angle), mean + radius * np.sin(angle)

    return draw


def truncated_normal(mean: float, std: float) -> Draw:
    """Return a draw from a normal distribution truncated to mean ± 2 std.

    It applies the inverse of the distribution function to uniform numbers.
    """
    from scipy.special import ndtr, ndtri  # slow to import, and only few models need it

    low = ndtr(-2.0)

    def draw(a: Words, b: Words) -> tuple[Floats, Floats]:
        truncated = (ndtri(low + (1.0 - 2.0 * low) * _unit(words)) for words in (a, b))
        left, right = (mean + std * normal for normal in truncated)
        return left, right

    return draw


DISTRIBUTIONS: dict[str, Callable[[float, float], Draw]] = {
    "uniform": uniform,
    "normal": normal,
    "truncated_normal": truncated_normal,
}
"""The distributions by name. Their arguments are low and high, or mean and std."""
