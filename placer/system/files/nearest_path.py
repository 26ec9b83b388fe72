"""Finds an existing path that is similar to a misspelled one."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from placer.errors import nearest

_MAX_ENTRIES: Final = 2000
"""The number of entries of a folder to compare with a name."""


def nearest_path(
    path: str | Path, is_wanted: Callable[[Path], bool] = Path.is_file
) -> str | None:
    """Return the existing path that is most similar to `path`, and for which `is_wanted`
    is True.

    Parts of `path` that exist are kept. Return None if `path` exists, if no path is
    similar, or if a folder on the way cannot be listed.
    """
    wanted = Path(path)
    try:
        if os.path.exists(wanted):
            return None
        found = Path(wanted.anchor)
        for index, name in enumerate(wanted.parts[bool(wanted.anchor) :], start=1):
            is_last = index == len(wanted.parts) - bool(wanted.anchor)
            accepts = is_wanted if is_last else Path.is_dir
            if not accepts(found / name):
                close = _nearest_entry(found, name, accepts)
                if close is None:
                    return None
                name = close
            found = found / name
    except OSError:
        return None  # The result is only a hint, so errors are ignored.
    return str(found)


def path_hint(
    path: str | Path, is_wanted: Callable[[Path], bool] = Path.is_file
) -> str | None:
    """Return a hint for a path that does not exist: the most similar path, or None."""
    close = nearest_path(path, is_wanted)
    return None if close is None else f"did you mean '{close}'?"


def _nearest_entry(
    folder: Path, name: str, accepts: Callable[[Path], bool]
) -> str | None:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, _MAX_ENTRIES)]
    return nearest(name, (each for each in names if accepts(folder / each)))
