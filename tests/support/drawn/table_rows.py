"""Rows of models with sparse tables: keys of all magnitudes, few enough to meet again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

WIDTH = 2
"""Keys of each row of an input with several."""
EXTREMES = (
    *(0, -1, 1, 2**63 - 1, -(2**63), 2**32, -(2**32), 2**31 - 1, -(2**31)),
    *(0x5555555555555555, -0x5555555555555556, 0x00FF00FF00FF00FF, 2**62 - 1),
)
"""Keys whose bits are extreme patterns, as int64."""


@dataclass(frozen=True)
class KeyPool:
    """Some extreme keys, and some that a seed draws."""

    seed: int
    size: int

    def of(self, dtype: str) -> np.ndarray:
        """Return the keys of an input of a dtype: those of uint64 have the bits of those
        of int64, and those of int32 are the ones that fit, and two more."""
        random = np.random.default_rng(self.seed)
        others = random.integers(-(2**63), 2**63 - 1, 7, endpoint=True)
        keys = random.permutation([*EXTREMES, *others])[: self.size]
        if dtype == "int32":
            fits = (keys >= -(2**31)) & (keys < 2**31)
            return np.array([*keys[fits], -7, 5], dtype)
        return keys.view(dtype)


def draw_rows(
    inputs: Mapping[str, str], keys: KeyPool, count: int
) -> dict[str, np.ndarray]:
    """Return a column for each input of a model: `x`, `y`, keys and their weights, and what
    a score or a time is made of."""
    random = np.random.default_rng(keys.seed + 1)
    columns = {}
    for name, text in inputs.items():
        dtype, _, shape = text.partition("[")
        size = (count, WIDTH) if "," in shape else (count,)
        if name.endswith("_keys"):
            columns[name] = random.choice(keys.of(dtype), size)
        elif name.endswith("_weights"):
            columns[name] = random.uniform(0.5, 1.5, size)
        elif name == "shows":
            columns[name] = random.integers(1, 9, count) / 4
        elif name == "clicks":
            columns[name] = random.integers(0, 2, count).astype(float)
        elif name == "time":
            columns[name] = 2**31 + 5 * np.sort(random.integers(0, 20, count))
        elif name == "x":
            columns[name] = random.normal(size=size)
        else:
            columns[name] = random.integers(0, 2, count).astype(dtype)
    return columns
