"""The rows of sparse tables in a checkpoint, by key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.testing import assert_allclose

from placer.checkpoint.manifest import SPARSE_ARRAYS
from placer.checkpoint.reading import Checkpoint
from placer.runtime.saving.row_files import read_partitions

OF_ROWS = SPARSE_ARRAYS[1 : SPARSE_ARRAYS.index("entry_keys")]
"""The arrays that have an element, or a row, for each row of a table."""
OF_PARTITION = ("filter", "latest")
Row = dict[str, np.ndarray]
Found = dict[tuple[str, str, int], Row]


def rows_of(checkpoint: Path, table: str) -> dict[int, Row]:
    """Return all rows of a table by key: each array of them."""
    found = _saved(checkpoint).items()
    return {key: row for (of, kind, key), row in found if (of, kind) == (table, "row")}


def assert_same_tables(first: Path, second: Path, **tolerance: float) -> None:
    """Check that all tables of two checkpoints are the same, in whatever files they are:
    integers just so, and the elements and slots of rows up to a tolerance."""
    ours, theirs = _saved(first), _saved(second)
    assert ours.keys() == theirs.keys()
    for key, row in ours.items():
        assert row.keys() == theirs[key].keys(), key
        for name, array in row.items():
            inexact = name in ("values", "scalars")
            limits = tolerance if inexact else {"rtol": 0}
            message = f"{key} {name}"
            assert_allclose(array, theirs[key][name], err_msg=message, **limits)


def _saved(checkpoint: Path) -> Found:
    """Return what a checkpoint has of each row of sparse tables, of each key without a row,
    and of each partition."""
    opened = Checkpoint(checkpoint)
    found: Found = {}
    for table, stored in opened.manifest.sparse.items():
        for partition in range(stored.partitions):
            (arrays,) = read_partitions(opened, [(table, partition)], finite=True)
            whole = {name: arrays[name] for name in OF_PARTITION if name in arrays}
            found[table, "partition", partition] = whole
            for kind, key, row in _of_keys(arrays):
                assert (table, kind, key) not in found
                found[table, kind, key] = row
    return found


def _of_keys(arrays: Row) -> Iterator[tuple[str, int, Row]]:
    for i, key in enumerate(arrays["keys"].tolist()):
        yield "row", key, {name: arrays[name][i] for name in OF_ROWS if name in arrays}
    for i, key in enumerate(arrays["entry_keys"].tolist()):
        yield "entry", key, {"words": arrays["entry_words"][i]}
