"""Lists the names of the files of a stream. A pass consists of whole units: files or folders."""

from __future__ import annotations

import os
from pathlib import Path

from placer.plan.settings.data.columns import is_glob
from placer.plan.settings.data.source import Data
from placer.system.files.globs import matching_files, would_match


def list_stream(data: Data, folder: Path) -> set[str]:
    """Return the paths of the files that count now; relative ones start at `folder`.

    With `stream.folder`, files count once their folder has a file of that name. This file and
    files `_*` never count.

    Raises:
        DataError: if a folder cannot be listed, or the name of a file is not UTF-8.
    """
    assert data.stream is not None
    found, marker = matching_files(data.parsed.path, folder), data.stream.folder
    if marker is None:
        return found
    names = {path: os.path.split(path) for path in found}
    complete = {
        parent: os.path.isfile(os.path.join(folder, parent, marker))
        for parent in {parent for parent, _ in names.values()}
    }
    return {
        path
        for path, (parent, name) in names.items()
        if complete[parent] and name != marker and not name.startswith("_")
    }


def in_the_form_of(data: Data, folder: Path, path: str) -> str | None:
    """Return the path of a file as the glob of a stream names it, such as `./a/1.csv` for
    `a/1.csv`; None if the glob does not match the file."""
    pattern = data.parsed.path
    if not would_match(pattern, folder, folder / path):
        return None
    parts = pattern.split("/")
    fixed = next((i for i, part in enumerate(parts) if is_glob(part)), len(parts))
    start = "/".join([*parts[:fixed], ""])
    return start + os.path.relpath(folder / path, folder / start)


def unit_of(data: Data, path: str) -> str:
    """Return the unit of a file: the file itself, or with `stream.folder` its folder."""
    assert data.stream is not None
    return path if data.stream.folder is None else os.path.dirname(path)
