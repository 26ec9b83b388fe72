"""Finds the files that a glob names. Hidden files and files that are still written do not count."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase, translate
from pathlib import Path
from typing import Final

from placer.errors import DataError

UNFINISHED: Final = ".tmp"
"""The end of the names of files and folders that are still written."""

_ABSENT: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
"""The errors of a path that leads to no file."""


def matching_files(pattern: str, folder: Path) -> set[str]:
    """Return the paths of the files that a glob matches; relative ones start at `folder`.

    `**` stands for any number of folders, without links to folders. Names that start with `.`
    or end in `.tmp` do not count, but a folder that the glob names in full does.

    Raises:
        DataError: if a folder cannot be listed, or the name of a file is not UTF-8.
    """
    *folders, name = pattern.split("/")
    start = "/" if pattern.startswith("/") else ""
    parts = [*filter(None, folders), name]
    try:
        found = set(_Search(os.fspath(folder)).find(start, parts))
    except OSError as error:
        raise DataError(
            f"the folder '{Path(error.filename)}' cannot be listed: {error.strerror}",
            hint=f"the glob '{pattern}' needs it",
        ) from error
    for path in found:
        if not path.isascii():
            _check_utf8(path)
    return found


def would_match(pattern: str, folder: Path, path: Path) -> bool:
    """Return whether a glob matches a file, if the file exists."""
    wanted = Path(os.path.abspath(folder / pattern)).parts
    found = Path(os.path.abspath(path)).parts
    return has_counted_name(found[-1]) and _matches(wanted, found)


def has_counted_name(name: str) -> bool:
    """Return whether a file or a folder of this name counts, if a glob matches it."""
    return not name.startswith(".") and not name.endswith(UNFINISHED)


def is_pattern(part: str) -> bool:
    """Return whether a part of a path is a glob."""
    return not {*"*?["}.isdisjoint(part)


class _Search:
    """Finds files below a folder, and lists each folder once."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._listed: dict[str, list[os.DirEntry[str]]] = {}

    def find(self, start: str, parts: Sequence[str]) -> Iterator[str]:
        """Yield the files that the parts of a glob match below `start`, maybe repeatedly."""
        first, rest = parts[0], parts[1:]
        if not is_pattern(first):
            path = start + first
            if rest:
                yield from self.find(f"{path}/", rest)
            elif has_counted_name(first) and os.path.isfile(self._full(path)):
                yield path
        elif first == "**":
            yield from self.find(start, rest or ["*"])
            for entry in self._list(start):
                if entry.is_dir(follow_symlinks=False):
                    yield from self.find(f"{start}{entry.name}/", parts)
        else:
            is_match = re.compile(translate(first)).match
            for entry in self._list(start):
                if is_match(entry.name) is None:
                    continue
                if rest:
                    if _leads_to(entry.is_dir):
                        yield from self.find(f"{start}{entry.name}/", rest)
                elif _leads_to(entry.is_file):
                    yield start + entry.name

    def _list(self, start: str) -> list[os.DirEntry[str]]:
        """Return the entries of a folder that count; none if there is no such folder."""
        if start not in self._listed:
            entries: list[os.DirEntry[str]] = []
            try:
                with os.scandir(self._full(start)) as listed:
                    entries += (e for e in listed if has_counted_name(e.name))
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
            self._listed[start] = entries
        return self._listed[start]

    def _full(self, path: str) -> str:
        return os.path.join(self._folder, path)


def _leads_to(is_kind: Callable[[], bool]) -> bool:
    """Return whether an entry or its link leads to a file of a kind."""
    try:
        return is_kind()
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return False


def _check_utf8(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        message = f"the name of the file '{shown}' is not UTF-8"
        raise DataError(message, hint="rename the file") from None


def _matches(wanted: Sequence[str], found: Sequence[str]) -> bool:
    if not wanted:
        return not found
    if wanted[0] == "**":
        counted = (i for i in range(len(found) + 1) if _all_count(found[:i]))
        return any(_matches(wanted[1:], found[i:]) for i in counted)
    is_first = bool(found) and fnmatchcase(found[0], wanted[0])
    if is_pattern(wanted[0]):
        is_first = is_first and has_counted_name(found[0])
    return is_first and _matches(wanted[1:], found[1:])


def _all_count(names: Sequence[str]) -> bool:
    return all(map(has_counted_name, names))
