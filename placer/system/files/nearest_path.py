"""The existing path that a misspelt one may mean."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from placer.errors import nearest

_MAX_ENTRIES: Final = 2000
"""How many entries of a folder are compared with a name."""


def nearest_path(
    path: str | Path, is_wanted: Callable[[Path], bool] = Path.is_file
) -> str | None:
    """Return an existing path whose parts have the names closest to those of `path`.

    `is_wanted` is whether a path may be the result; by default, only files. Parts that
    exist are kept. None if `path` exists, if no path is close, or if a folder on the way
    cannot be listed.
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
        return None  # it is no more than a hint
    return str(found)


def path_hint(
    path: str | Path, is_wanted: Callable[[Path], bool] = Path.is_file
) -> str | None:
    """Return a hint for a path that does not exist: the nearest one, if any."""
    close = nearest_path(path, is_wanted)
    return None if close is None else f"did you mean '{close}'?"


def _nearest_entry(
    folder: Path, name: str, accepts: Callable[[Path], bool]
) -> str | None:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, _MAX_ENTRIES)]
    return nearest(name, (each for each in names if accepts(folder / each)))
