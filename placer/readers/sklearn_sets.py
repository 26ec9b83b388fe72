"""The data sets that are part of scikit-learn, so nothing is downloaded."""

from __future__ import annotations

import numpy as np

from placer.config.sources import SKLEARN, Source
from placer.readers.split import split_rows


def read(source: Source, split: str | None) -> dict[str, np.ndarray]:
    """Return the columns of a bundled set by name, with unchanged values."""
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{source.path}")()
    columns = {name: np.asarray(bunch[name]) for name in SKLEARN[source.path]}
    part = split_rows(len(columns["data"]), split)
    return {name: column[part] for name, column in columns.items()}
