"""Digests of a source's rows, by which nodes check that they read the same rows."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

ROWS_AT_EACH_END = 64
"""The number of rows that are compared at each end of a source."""
DRAWN_ROWS = 128
"""The number of random rows that are compared between the ends."""


@dataclass(frozen=True, slots=True)
class Digests:
    """CRC-32 checksums of what a node reads from a source.

    Attributes:
        rows: the numbers of the rows that are compared one by one.
        columns: for each input, the digest of each of these rows in the input's dtype.
        whole: for each input, a digest of all rows. It can only be compared between
            nodes that read the same kind of source.

    An input may be in `columns`, in `whole`, in both or in none.
    """

    rows: tuple[int, ...]
    columns: Mapping[str, tuple[int, ...]]
    whole: Mapping[str, int] = field(default_factory=dict)


def sample_rows(rows: int, seed: int) -> NDArray[np.int64]:
    """Return the numbers of the rows to compare: the first, the last, and random ones
    between them, drawn by `seed`. int64[at most 256], ascending."""
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
    """Return the digest of an input that several columns feed, from those of the
    columns."""
    return digest(np.fromiter(digests, np.uint32))
