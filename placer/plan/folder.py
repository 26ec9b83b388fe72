"""Reads and writes the files of a build folder.

A build contains code that nodes run. placer therefore follows no links inside the
folder, and reads no file that other users can change (`placer/system/files/owners.py`).
It runs only files whose hash is in the plan, and writes only inside the folder.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from placer.errors import BuildError, PlacerError
from placer.system.files.owners import check_owner
from placer.system.files.regular import NotRegularError, open_regular, read_at_most

CACHE = "__pycache__"


def read_file(
    folder: Path, path: str, sha256: str | None = None, *, limit: int | None = None
) -> bytes:
    """Read a file of a build and return the checked bytes.

    Args:
        folder: the build folder.
        path: the path of the file inside the folder.
        sha256: the expected hash; None skips this check.
        limit: the largest allowed size in bytes.

    Raises:
        BuildError: the path leaves the folder, the file is missing or too large, or its
            hash is wrong. Also if a link inside the folder leads to the file, or if
            other users can change it.
    """
    if not is_inside(path):
        raise BuildError(f"'{path}' is outside of the build '{folder}'")
    file = folder / path
    try:
        for place in (*_parents(file, folder), file):
            _check_no_link(place)
            check_owner(place)
        with open_regular(file, follow=False) as opened:
            content = opened.read() if limit is None else read_at_most(opened, limit)
    except (FileNotFoundError, NotRegularError, IsADirectoryError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        problem = "is missing" if is_missing else "is not a file"
        raise BuildError(
            f"'{file}' {problem}", hint="compile the spec again"
        ) from error
    except OSError as error:
        raise BuildError(f"'{file}' cannot be read: {error.strerror}") from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise edited_error(file)
    return content


def check_outside(path: Path, build: Path, what: str = "") -> None:
    """Raise PlacerError if a path to write is inside a build, whose files must not change.

    Args:
        path: the file or folder to write.
        build: the build folder.
        what: the words before the path in the message, such as `checkpoints to `.
    """
    if path.resolve().is_relative_to(build.resolve()):
        raise PlacerError(
            f"cannot write {what}'{path}': it is inside the build folder",
            hint="choose a path outside of it: nodes refuse a build with other files",
        )


def write_unfinished(folder: Path, path: str, content: bytes) -> None:
    """Write a file under a temporary name, for `finish_file` to rename.

    Only the owner can write to the file. Raises OSError, and BuildError if a folder on
    the path is a link.
    """
    file = folder / unfinished_path(path)
    check_parents(folder, path)
    for parent in _parents(file, folder):
        parent.mkdir(mode=0o755, exist_ok=True)
    file.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(file, flags, 0o644), "wb") as opened:
        opened.write(content)


def finish_file(folder: Path, path: str) -> None:
    """Rename a file of `write_unfinished` to its final path, replacing a link there.

    Raises OSError, and BuildError if a folder on the path is a link.
    """
    check_parents(folder, path)
    (folder / unfinished_path(path)).replace(folder / path)


def remove_file(folder: Path, path: str) -> None:
    """Remove a file of a build and its empty parent folders.

    Raises OSError, and BuildError if a folder on the path is a link.
    """
    check_parents(folder, path)
    file = folder / path
    file.unlink(missing_ok=True)
    for parent in reversed(_parents(file, folder)):
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def unfinished_path(path: str) -> str:
    """Return the temporary path under which a file is written."""
    return f"{path}.unfinished"


def is_inside(path: str) -> bool:
    """Whether a path of a plan is relative, normalized and printable."""
    pure = PurePosixPath(path)
    is_relative = not pure.is_absolute() and ".." not in pure.parts
    is_text = bool(pure.parts) and path.isprintable()
    return is_relative and is_text and pure.as_posix() == path


def find_unknown_files(folder: Path, known: Collection[str]) -> list[str]:
    """Return the sorted files and links of a build folder that are not in `known`.

    Skips `__pycache__` folders: placer never runs bytecode, and Python uses cached
    bytecode only next to its source file. Raises OSError.
    """
    paths: list[str] = []

    def raise_error(error: OSError) -> None:
        raise error

    for parent, folders, files in os.walk(folder, onerror=raise_error):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        folders[:] = [name for name in folders if name != CACHE]
        within = Path(parent).relative_to(folder)
        paths += [(within / name).as_posix() for name in (*files, *links)]
    return sorted(set(paths) - set(known))


def edited_error(file: Path) -> BuildError:
    """Return the error for a file whose hash differs from the plan."""
    return BuildError(
        f"'{file}' was changed after it was compiled",
        hint="change the spec, not the build, and compile again",
    )


def damaged_error(file: Path, error: Exception) -> BuildError:
    """Return the error for a file whose content cannot be decoded."""
    return BuildError(
        f"'{file}' cannot be read: {error}", hint="compile the spec again"
    )


def check_parents(folder: Path, path: str) -> None:
    """Raise BuildError if a folder between the build and a file is a link."""
    for parent in _parents(folder / path, folder):
        _check_no_link(parent)


def _check_no_link(place: Path) -> None:
    if place.is_symlink():
        raise BuildError(
            f"'{place}' is a link; links are not allowed in a build folder"
        )


def _parents(file: Path, folder: Path) -> list[Path]:
    """Return the folders between the build folder and the file, outermost first."""
    between = file.relative_to(folder).parents
    return [folder / parent for parent in reversed(between) if parent.parts]
