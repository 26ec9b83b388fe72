"""The data sets that come inside scikit-learn: nothing is downloaded."""

from __future__ import annotations

import numpy as np

from placer.graph.sources import SKLEARN, Source


def read(source: Source, split: str | None) -> dict[str, np.ndarray]:
    """The columns of a bundled set, values as the set gives them, unscaled.

    For `train` and `test` the rows are permuted by a fixed seed; the last
    floor(n / 5) are `test`.
    """
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{source.path}")()
    columns = {name: np.asarray(bunch[name]) for name in SKLEARN[source.path]}
    if split is None:
        return columns
    rows = len(columns["data"])
    order = np.random.Generator(np.random.PCG64(0)).permutation(rows)
    cut = rows - rows // 5
    part = order[:cut] if split == "train" else order[cut:]
    return {name: column[part] for name, column in columns.items()}
