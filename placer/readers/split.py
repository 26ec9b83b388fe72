"""The rows of a set that are for training, and those that are for testing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def split_rows(rows: int, split: str | None) -> NDArray[np.int64] | slice:
    """Which of `rows` rows are `train` or `test`; all of them without a split.

    Rows are permuted by a fixed seed; the last floor(rows / 5) are `test`.
    """
    if split is None:
        return slice(None)
    order = np.random.Generator(np.random.PCG64(0)).permutation(rows)
    cut = rows - rows // 5
    return order[:cut] if split == "train" else order[cut:]
