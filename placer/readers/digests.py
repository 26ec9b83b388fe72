"""Computes digests, with which nodes check that they read the same rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

ROWS_AT_EACH_END = 64
"""The number of rows to compare at each end of a source."""
DRAWN_ROWS = 128
"""The number of random rows to compare between the ends."""


def sample_rows(rows: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers of the rows to compare: int64[at most 256], ascending.

    They are the first and the last rows, and random rows between them, drawn with
    `seed`.
    """
    if rows <= 2 * ROWS_AT_EACH_END + DRAWN_ROWS:
        return np.arange(rows, dtype=np.int64)
    key = np.array([seed % 2**64, 0], np.uint64)
    between = np.random.Generator(np.random.Philox(key=key)).choice(
        rows - 2 * ROWS_AT_EACH_END, DRAWN_ROWS, replace=False
    )
    ends = np.arange(ROWS_AT_EACH_END), np.arange(rows - ROWS_AT_EACH_END, rows)
    return np.concatenate(
        [ends[0], np.sort(between) + ROWS_AT_EACH_END, ends[1]]
    ).astype(np.int64)


def digest(array: np.ndarray) -> int:
    """Return the CRC-32 of an array's values in C order."""
    return zlib.crc32(array.tobytes())


def join_digests(digests: Iterable[int]) -> int:
    """Return the digest of an input from the digests of its columns."""
    return digest(np.fromiter(digests, np.uint32))
