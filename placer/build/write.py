"""A build on disk: all of its files are written before the first takes its place.

They take their places one by one. Of what is killed in between, the plan's hashes do not
fit: such a build is refused, and the next compilation puts a whole one in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from placer.errors import BuildError
from placer.build.folder import (
    added,
    check_parents,
    finish_file,
    is_inside,
    remove_file,
    unfinished,
    write_unfinished,
)
from placer.build.plan import FILE, SOURCES


def write_build(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the build, in place of an earlier one of which nothing stays.

    An earlier build stays as it was until every file is written under another name; a
    disk that is full leaves it so. What a compilation that was killed has left is
    known by its plan, which is written first. Raises BuildError for a folder that
    holds other files, and where it cannot be written.
    """
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if any(folder.iterdir()) and not _is_build(folder):
            raise BuildError(
                f"'{folder}' holds other files and no build",
                hint="name an empty or a new folder",
            )
        old = _old_files(folder)
        for path in (*old, *files):
            check_parents(folder, path)
        mine = {FILE, SOURCES, *old, *files}
        left = {unfinished(path) for path in mine}
        for path in added(folder, {*mine, *left}):
            raise BuildError(
                f"'{folder / path}' is not of the build that is here",
                hint="take it away, or name an empty or a new folder",
            )
        # The plan first, so that the others are known by it.
        ahead = (FILE, *(path for path in files if path != FILE))
        try:
            for path in ahead:
                write_unfinished(folder, path, files[path])
        except BaseException:
            for path in reversed(ahead):
                with suppress(OSError):  # the first error is the one to report
                    remove_file(folder, unfinished(path))
            raise
        for path in mine - set(files):
            remove_file(folder, path)
        for path in reversed(ahead):
            finish_file(folder, path)
        for path in left - set(map(unfinished, files)):
            remove_file(folder, path)
    except OSError as error:
        raise BuildError(f"cannot write '{folder}': {error}") from error


class _Written(msgspec.Struct):
    """What is asked of an old plan, of whatever version."""

    placer: str
    files: dict[str, str]


def _is_build(folder: Path) -> bool:
    """Whether a build lies here, or what a compilation that was killed has left."""
    return any((folder / path).is_file() for path in (FILE, unfinished(FILE)))


def _old_files(folder: Path) -> tuple[str, ...]:
    """What earlier compilations into this folder wrote, whole or not, edited or not:
    programs of nodes that may be gone."""
    found = (*_named(folder / FILE), *_named(folder / unfinished(FILE)))
    return tuple(path for path in dict.fromkeys(found) if is_inside(path))


def _named(plan: Path) -> tuple[str, ...]:
    if not plan.is_file():
        return ()
    try:
        written = msgspec.json.decode(plan.read_bytes(), type=_Written)
    except (ValueError, msgspec.MsgspecError):
        return ()  # no plan any more: files that it may have named are not ours
    return tuple(written.files)
