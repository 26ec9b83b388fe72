"""The data sets included in scikit-learn, which need no download.

Importing scikit-learn takes longer than reading any of its sets. Therefore the arrays
are kept in the user's cache; otherwise each node would import scikit-learn at every
start.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from placer.plan.settings.data.sources import SKLEARN
from placer.readers.arguments import ReadRequest
from placer.readers.arrays import make_rows
from placer.readers.digests import digest
from placer.readers.rows import LoadedRows
from placer.readers.split import split_rows
from placer.system.ast_lock import AST_LOCK
from placer.system.caches.folder import usable_folder, user_cache
from placer.system.caches.turns import alone
from placer.system.files.atomic import atomic_file
from placer.system.files.regular import open_regular

Arrays = dict[str, npt.NDArray[Any]]


def read(request: ReadRequest) -> LoadedRows:
    """Return the rows of an included set, or of a split of it.

    Raises DataError if it does not fit the inputs.
    """
    name = request.source.path
    columns = _load(name, SKLEARN[name])
    part = split_rows(len(columns["data"]), request.data.split)
    arrays = {name: column[part] for name, column in columns.items()}
    digests = {name: digest(array) for name, array in arrays.items()}
    return make_rows(request, arrays, digests)


def _load(name: str, columns: Sequence[str]) -> Arrays:
    """Return the arrays of a set, from the cache if possible."""
    file = _cache_file(name)
    if file is None:
        return _load_bundled(name, columns)
    if stored := _load_stored(file, columns):
        return stored
    with alone(file.parent):  # only one of several nodes imports scikit-learn
        if stored := _load_stored(file, columns):
            return stored
        arrays = _load_bundled(name, columns)
        with (
            suppress(OSError),
            atomic_file(file, 0o600) as written,
        ):  # the disk may be full
            np.savez(written, **arrays)  # type: ignore[arg-type]
    return arrays


def _load_stored(file: Path, columns: Sequence[str]) -> Arrays | None:
    with (
        suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile),
        open_regular(file) as opened,
        AST_LOCK,  # NumPy parses headers with `ast`, and nodes may be threads
        np.load(opened) as stored,
    ):
        return {column: stored[column] for column in columns}
    return None


def _load_bundled(name: str, columns: Sequence[str]) -> Arrays:
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{name}")()
    return {column: np.asarray(bunch[column]) for column in columns}


def _cache_file(name: str) -> Path | None:
    """Return a set's cache file, named by scikit-learn's version; None without a cache."""
    base = user_cache()
    with suppress(PackageNotFoundError):
        folder = usable_folder(base and base / f"sklearn-{version('scikit-learn')}")
        return folder and folder / f"{name}.npz"
    return None
