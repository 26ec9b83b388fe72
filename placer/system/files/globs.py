"""Finds the files that a glob names. Hidden files and files that are still written do not count."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path
from typing import Final

UNFINISHED: Final = ".tmp"
"""The end of the names of files that are still written."""


def matching_files(pattern: str, folder: Path) -> set[str]:
    """Return the paths of the files that a glob matches; relative ones start at `folder`."""
    return {
        path
        for path in glob(pattern, root_dir=folder, recursive=True)
        if not path.endswith(UNFINISHED) and (folder / path).is_file()
    }


def would_match(pattern: str, folder: Path, path: Path) -> bool:
    """Return whether a glob matches a file, if the file exists."""
    wanted = Path(os.path.abspath(folder / pattern)).parts
    found = Path(os.path.abspath(path)).parts
    is_hidden = path.name.startswith(".") or path.name.endswith(UNFINISHED)
    return not is_hidden and _matches(wanted, found)


def _matches(wanted: Sequence[str], found: Sequence[str]) -> bool:
    if not wanted:
        return not found
    if wanted[0] == "**":
        return any(_matches(wanted[1:], found[i:]) for i in range(len(found) + 1))
    is_first = bool(found) and fnmatchcase(found[0], wanted[0])
    return is_first and _matches(wanted[1:], found[1:])
