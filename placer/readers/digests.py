"""Digests of a source's rows, by which nodes find out whether they read the same ones."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

ENDS = 64
"""How many rows are compared at each end of a source."""
DRAWN = 128
"""How many are compared between them."""


@dataclass(frozen=True, slots=True)
class Digests:
    """CRC-32 of what a node reads of a source, by input.

    `columns` has one for each of `rows`, which are row numbers, in the input's dtype.
    `whole` has one for all rows; the values are comparable between nodes that read the
    same kind of source, and say nothing else. An input may be in either, both or none.
    """

    rows: tuple[int, ...]
    columns: Mapping[str, tuple[int, ...]]
    whole: Mapping[str, int] = field(default_factory=dict)


def sampled(rows: int, seed: int) -> NDArray[np.int64]:
    """The numbers of the rows to compare: the first, the last, and some that the seed
    draws between them. int64[at most 256], ascending."""
    if rows <= 2 * ENDS + DRAWN:
        return np.arange(rows, dtype=np.int64)
    key = np.array([seed % 2**64, 0], np.uint64)
    between = np.random.Generator(np.random.Philox(key=key)).choice(
        rows - 2 * ENDS, DRAWN, replace=False
    )
    ends = np.arange(ENDS), np.arange(rows - ENDS, rows)
    return np.concatenate([ends[0], np.sort(between) + ENDS, ends[1]]).astype(np.int64)


def digest(array: np.ndarray) -> int:
    """CRC-32 of an array's values in C order."""
    return zlib.crc32(array.tobytes())


def of_rows(columns: Mapping[str, np.ndarray], rows: Sequence[int]) -> Digests:
    """The digests of these rows; each column holds those rows and no other."""
    return Digests(
        tuple(rows), {name: tuple(map(digest, each)) for name, each in columns.items()}
    )


def add_cells(cells: Iterable[str], before: int) -> int:
    """The digest of some more cells of text."""
    return zlib.crc32("\0".join(cells).encode(), before)
