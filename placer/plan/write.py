"""Writing a build folder: all files are written before the first one is renamed.

Files are renamed to their paths one by one. If the process is killed in between, the
files do not have the plan's hashes: such a build is refused, and the next compilation
replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from placer.errors import BuildError
from placer.plan.folder import (
    check_parents,
    find_unknown_files,
    finish_file,
    is_inside,
    remove_file,
    unfinished_path,
    write_unfinished,
)
from placer.plan.plan import FILE, SOURCES
from placer.system.files.utf8 import check_utf8


def write_build(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a build into a folder, and remove an earlier build there.

    `files` are all files of the build, with the plan, by path. The earlier build is
    unchanged until every file is written under a temporary name, so that it survives a
    full disk. Raises BuildError if the folder contains files that are not of a build,
    and if it cannot be written.
    """
    check_utf8(folder, BuildError)
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if any(folder.iterdir()) and not _is_build(folder):
            raise BuildError(
                f"'{folder}' contains files, but is not a build",
                hint="use an empty or a new folder",
            )
        old = _old_files(folder)
        for path in (*old, *files):
            check_parents(folder, path)
        known = {FILE, SOURCES, *old, *files}
        unfinished = {unfinished_path(path) for path in known}
        for path in find_unknown_files(folder, {*known, *unfinished}):
            raise BuildError(
                f"'{folder / path}' is not part of the build in this folder",
                hint="remove it, or use an empty or a new folder",
            )
        # The plan first: if the process is killed, the next compilation finds the names
        # of the other unfinished files in it.
        order = (FILE, *(path for path in files if path != FILE))
        try:
            for path in order:
                write_unfinished(folder, path, files[path])
        except BaseException:
            for path in reversed(order):
                with suppress(OSError):  # the first error is the one to report
                    remove_file(folder, unfinished_path(path))
            raise
        for path in known - set(files):
            remove_file(folder, path)
        for path in reversed(order):
            finish_file(folder, path)
        for path in unfinished - set(map(unfinished_path, files)):
            remove_file(folder, path)
    except OSError as error:
        raise BuildError(f"cannot write '{folder}': {error.strerror}") from error


class _OldPlan(msgspec.Struct):
    """The fields that are read of an earlier plan, of any version."""

    placer: str
    files: dict[str, str]


def _is_build(folder: Path) -> bool:
    """Whether the folder has a build, or the files of a compilation that was killed."""
    return any((folder / path).is_file() for path in (FILE, unfinished_path(FILE)))


def _old_files(folder: Path) -> tuple[str, ...]:
    """The files that earlier compilations wrote into the folder, by their plans.

    Also of unfinished and edited builds. They include programs of nodes that the new
    build does not have.
    """
    paths: list[str] = []
    for plan in (folder / FILE, folder / unfinished_path(FILE)):
        if plan.is_file():
            # Files that are named by something else than a plan are left alone.
            with suppress(ValueError, msgspec.MsgspecError):
                paths += msgspec.json.decode(plan.read_bytes(), type=_OldPlan).files
    return tuple(path for path in dict.fromkeys(paths) if is_inside(path))
