"""The data sets that are part of scikit-learn, so nothing is downloaded."""

from __future__ import annotations

import numpy as np

from placer.config.sources import SKLEARN
from placer.readers.arguments import ReadRequest
from placer.readers.arrays import make_rows
from placer.readers.digests import digest
from placer.readers.rows import LoadedRows
from placer.readers.split import split_rows


def read(request: ReadRequest) -> LoadedRows:
    """Return the rows of a bundled set, or of a split of it.

    Raises DataError if it does not fit the inputs.
    """
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{request.source.path}")()
    columns = {name: np.asarray(bunch[name]) for name in SKLEARN[request.source.path]}
    part = split_rows(len(columns["data"]), request.data.split)
    arrays = {name: column[part] for name, column in columns.items()}
    digests = {name: digest(array) for name, array in arrays.items()}
    return make_rows(request, arrays, digests)
