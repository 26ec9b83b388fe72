"""Writes a build folder, and keeps the old build until all new files are on disk.

placer writes every file under a temporary name, then renames them one by one. If the
process is killed in between, hashes no longer match the plan. Nodes refuse such a
build, and the next compilation replaces it.
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
    """Write a build into a folder, replacing an earlier build there.

    The earlier build stays intact until all files are written under temporary names, so
    it survives a full disk.

    Args:
        folder: the build folder.
        files: the content of all files, including the plan, by path.

    Raises:
        BuildError: the folder contains other files, or cannot be written.
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
        # The plan first: if the process is killed, the plan lists the other unfinished
        # files for the next compilation.
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
    """The fields of an earlier plan that all versions share."""

    placer: str
    files: dict[str, str]


def _is_build(folder: Path) -> bool:
    """Whether the folder holds a build, finished or not."""
    return any((folder / path).is_file() for path in (FILE, unfinished_path(FILE)))


def _old_files(folder: Path) -> tuple[str, ...]:
    """Return the files that earlier compilations wrote, according to their plans."""
    # Unfinished and edited builds count, so programs missing from the new build are found.
    paths: list[str] = []
    for plan in (folder / FILE, folder / unfinished_path(FILE)):
        if plan.is_file():
            # Leave files alone if the JSON file that names them is not a plan.
            with suppress(ValueError, msgspec.MsgspecError):
                paths += msgspec.json.decode(plan.read_bytes(), type=_OldPlan).files
    return tuple(path for path in dict.fromkeys(paths) if is_inside(path))
