"""Splits rows into rows for training and rows for testing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def split_rows(rows: int, split: str | None) -> NDArray[np.int64] | slice:
    """Return which of `rows` rows belong to `train` or `test`; all if `split` is None.

    Rows are permuted with a fixed seed; the last floor(rows / 5) of them are `test`.
    """
    if split is None:
        return slice(None)
    order = np.random.Generator(np.random.PCG64(0)).permutation(rows)
    cut = rows - rows // 5
    return order[:cut] if split == "train" else order[cut:]
