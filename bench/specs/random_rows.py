"""Rows for the benchmarks: random, always the same."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rows:
    """A row is a mapping of the columns at its index."""

    columns: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        return {name: column[row] for name, column in self.columns.items()}


def _classes(count: int, width: int, classes: int) -> Rows:
    random = np.random.default_rng(0)
    x = random.standard_normal((count, width), np.float32)
    return Rows({"x": x, "label": random.integers(0, classes, count).astype(np.int32)})


def dense() -> Rows:
    """Of W3: 1024 features, 1000 classes."""
    return _classes(640, 1024, 1000)


def mesh() -> Rows:
    """Two batches of 4096 rows, of 256 features and 10 classes."""
    return _classes(8192, 256, 10)


def pipeline(count: int = 8 * 256) -> Rows:
    """A batch of 8 microbatches of 256 rows, of 1024 features and targets."""
    random = np.random.default_rng(0)
    shape = count, 1024
    return Rows({name: random.standard_normal(shape, np.float32) for name in "xy"})


def large() -> Rows:
    """The same of microbatches of 2048 rows."""
    return pipeline(8 * 2048)
