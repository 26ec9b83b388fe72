"""Rows of W2: 26 ids and 13 numbers each, and whether it was clicked.

Each slot draws its ids from a Zipf distribution with exponent 1.1 over as many ranks as
there are possible keys. A slot and a rank are hashed to the number of a key, so that slots
share keys: a batch of 1024 rows has about 13,700 different ones of 1 M, and 14,800 of 10 M.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

SLOTS, NUMBERS = 26, 13
EXPONENT = 1.1


def write_rows(path: Path, keys: int, rows: int = 1 << 18) -> None:
    """Write an npz file with rows, always the same.

    Arrays, the first dimension of each being `rows`:
        ids     int64[26]: 64 bits of the hash of a number
        number  int32[26]: the number of each key, below `keys`, for tables without an index
        dense   float32[13]: normal
        label   float32[1]: 0 or 1, drawn with a probability that the others decide
    """
    random = np.random.default_rng(0)
    weights = np.cumsum(np.arange(1, keys + 1, dtype=np.float64) ** -EXPONENT)
    drawn = random.random((rows, SLOTS)) * weights[-1]
    rank = np.minimum(np.searchsorted(weights, drawn), keys - 1).astype(np.uint64)
    slots = np.arange(SLOTS, dtype=np.uint64) << np.uint64(32)
    number = _mix(rank + slots) % np.uint64(keys)
    ids = _mix(number)
    dense = random.standard_normal((rows, NUMBERS), np.float32)
    # A key and a slot have a hidden weight: the last bits of a hash.
    hidden = (_mix(ids + slots) >> np.uint64(40)).astype(np.float32) / 2**24 - 0.5
    logit = hidden.sum(1) + dense @ random.standard_normal(NUMBERS, np.float32) / 4
    label = random.random(rows) < 1 / (1 + np.exp(-logit))
    np.savez(
        path,
        ids=ids.view(np.int64),
        number=number.astype(np.int32),
        dense=dense,
        label=label.astype(np.float32)[:, None],
    )


def _mix(x: np.ndarray) -> np.ndarray:
    """Return the finalizer of splitmix64 of each element, which is a bijection."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
