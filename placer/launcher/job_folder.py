"""Writes the files of a job to a folder, and keeps unrelated files there safe."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from placer.errors import PlacerError
from placer.launcher.engines.engine import JobFiles
from placer.plan.folder import check_outside, is_inside

LIST: Final = ".placer-job"
"""The file that lists the paths of the job's files, one per line."""
_CACHE: Final = "__pycache__"
_FILE_MODE: Final = {False: 0o644, True: 0o600}


def write_job_files(folder: Path, files: JobFiles, build: Path) -> None:
    """Write the files of a job into a folder, and replace the files of an earlier job
    there. Raises PlacerError if the folder is inside the build, if an unrelated file is
    in the way, or if a file cannot be written."""
    check_outside(folder, build, "a job to ")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        old = _old_files(folder)
        _check_others(folder, files, old)
        _write_list(folder, {**dict.fromkeys(old), **files})
        for name in (name for name in old if name not in files):
            _remove(folder, name)
        for name, file in files.items():
            path, content = folder / name, file.content
            path.parent.mkdir(parents=True, exist_ok=True)
            data = content.encode() if isinstance(content, str) else content
            _write(path, data, _FILE_MODE[file.private])
        _write_list(folder, files)
    except OSError as error:
        raise PlacerError(
            f"cannot write the job's files to '{folder}': {error.strerror}"
        ) from error


def remove_job_files(folder: Path) -> None:
    """Remove the files of a job from a folder; ignore files that cannot be removed."""
    names: list[str] = []
    with suppress(OSError):
        names = _old_files(folder)
    for name in (*names, LIST):
        with suppress(OSError):
            _remove(folder, name)


def _old_files(folder: Path) -> list[str]:
    try:
        lines = (folder / LIST).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line for line in lines if line and is_inside(line)]


def _check_others(folder: Path, files: JobFiles, old: list[str]) -> None:
    """Raise PlacerError if an unrelated file is in the way of a job's file or folder."""
    folders = {name.partition("/")[0] for name in files if "/" in name}
    inside = (
        path.relative_to(folder).as_posix()
        for each in sorted(folders)
        for path in sorted((folder / each).rglob("*"))
        if not path.is_dir() and _CACHE not in path.parts
    )
    for name in (*inside, *files):
        if name not in old and os.path.lexists(folder / name):
            raise PlacerError(
                f"'{folder / name}' exists and does not belong to a job",
                hint="use an empty or new folder",
            )


def _write_list(folder: Path, names: dict[str, object] | JobFiles) -> None:
    text = "".join(f"{name}\n" for name in names)
    _write(folder / LIST, text.encode(), _FILE_MODE[False])


def _remove(folder: Path, name: str) -> None:
    """Remove a file of an earlier job, and its parent folders if they are then empty."""
    path = folder / name
    path.unlink(missing_ok=True)
    with suppress(OSError):  # The folder contains other files.
        for parent in path.parents:
            if parent == folder:
                break
            parent.rmdir()


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a new file, created with its final mode."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(fd, "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
    unfinished.replace(path)
