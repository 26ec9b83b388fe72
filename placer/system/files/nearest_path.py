"""Finds an existing path that is similar to a misspelled one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from placer.errors import nearest

SPECS: Final = "specs"
"""A folder next to a missing spec that hints also search."""

_MAX_ENTRIES: Final = 2000
"""The number of entries of a folder to compare with a name."""

_MAX_LISTED: Final = 8
"""The largest number of paths that a hint lists."""


def nearest_path(
    path: str | Path,
    is_wanted: Callable[[Path], bool] = Path.is_file,
    folders: Sequence[str | Path] = (),
) -> str | None:
    """Return the existing path that is most similar to `path`, and for which `is_wanted`
    is True.

    Parts of `path` that exist are kept. If no path is similar, the last part is searched
    in the `folders` next to it, such as `specs/digits.yaml` for `digits.yaml`. Return None
    if `path` exists, if no path is similar, or if a folder on the way cannot be listed.
    """
    wanted = Path(path)
    try:
        if os.path.exists(wanted):
            return None
        for start in (wanted, *_in_folders(wanted, folders)):
            if (found := _nearest(start, is_wanted)) is not None:
                return str(found)
    except OSError:
        pass  # The result is only a hint, so errors are ignored.
    return None


def path_hint(
    path: str | Path,
    is_wanted: Callable[[Path], bool] = Path.is_file,
    folders: Sequence[str | Path] = (),
    show: Callable[[str], str] = str,
    *,
    lists: bool = False,
) -> str | None:
    """Return a hint for a path that does not exist: the most similar path, or None.

    Args:
        path: the missing path.
        is_wanted: returns True for a path that the hint may name.
        folders: folders next to `path` to search as well.
        show: returns the text of a path in the hint.
        lists: if no path is similar, list a few paths that exist.
    """
    close = nearest_path(path, is_wanted, folders)
    if close is not None:
        return f"did you mean '{show(close)}'?"
    if not lists:
        return None
    # A folder in place of a file: list its own files.
    start = Path(path) / "*" if os.path.isdir(path) else Path(path)
    listed = [show(str(each)) for each in _existing(start, is_wanted, folders)]
    return f"one of: {', '.join(listed)}" if 0 < len(listed) <= _MAX_LISTED else None


def _nearest(wanted: Path, is_wanted: Callable[[Path], bool]) -> Path | None:
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
    return found


def _in_folders(path: Path, folders: Sequence[str | Path]) -> Iterator[Path]:
    for folder in folders:
        if path.name and (path.parent / folder).is_dir():
            yield path.parent / folder / path.name


def _existing(
    path: Path, is_wanted: Callable[[Path], bool], folders: Sequence[str | Path]
) -> Iterator[Path]:
    for folder in (path.parent, *(path.parent / each for each in folders)):
        try:
            names = sorted(_names(folder))
        except OSError:
            continue  # The folder is missing, or cannot be listed.
        yield from (folder / name for name in names if is_wanted(folder / name))


def _nearest_entry(
    folder: Path, name: str, accepts: Callable[[Path], bool]
) -> str | None:
    names = [each for each in _names(folder) if accepts(folder / each)]
    # An equal suffix, such as `.yaml`, does not make two names similar.
    stem = nearest(Path(name).stem, {Path(each).stem for each in names})
    same = sorted(each for each in names if Path(each).stem == stem)
    if stem == Path(name).stem:  # A name without a suffix is unlike a name with one.
        return nearest(name, same) or same[0]
    return nearest(name, same)


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, _MAX_ENTRIES)]
