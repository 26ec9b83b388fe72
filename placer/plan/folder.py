"""Reading and writing the files of a build folder.

A build folder contains code that is run. So no file is read through a link below the
folder or if other users can change it (`placer/system/files/owners.py`), no file is run whose
hash is not in the plan, and no file is written outside of the folder.
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
    """Read a file of a build, and return the bytes that were checked.

    Raises BuildError if the path leaves the folder, or if the file is missing, has more
    than `limit` bytes, is reached through a link below the folder, can be changed by
    other users, or does not have the hash `sha256`.
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
    """Raise PlacerError if a file or folder that something writes is inside a build, whose
    files must not change.

    Args:
        path: the file or folder.
        build: the folder of the build.
        what: the words before the path in the message, such as `checkpoints to `.
    """
    if path.resolve().is_relative_to(build.resolve()):
        raise PlacerError(
            f"cannot write {what}'{path}': it is inside the build folder",
            hint="name a path outside of it: a build with other files cannot be run",
        )


def write_unfinished(folder: Path, path: str, content: bytes) -> None:
    """Write a file of a build under a temporary name; `finish_file` renames it.

    Only the owner may write to it. Raises BuildError if a folder on the path is a link,
    and OSError.
    """
    file = folder / unfinished_path(path)
    check_parents(folder, path)
    file.parent.mkdir(mode=0o755, exist_ok=True)
    file.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(file, flags, 0o644), "wb") as opened:
        opened.write(content)


def finish_file(folder: Path, path: str) -> None:
    """Rename a file that `write_unfinished` wrote; a link at `path` is replaced.

    Raises BuildError if a folder on the path is a link, and OSError.
    """
    check_parents(folder, path)
    (folder / unfinished_path(path)).replace(folder / path)


def remove_file(folder: Path, path: str) -> None:
    """Remove a file of a build, and the folders that are empty then.

    Raises BuildError if a folder on the path is a link, and OSError.
    """
    check_parents(folder, path)
    file = folder / path
    file.unlink(missing_ok=True)
    for parent in reversed(_parents(file, folder)):
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def unfinished_path(path: str) -> str:
    """Return the temporary path of a file while it is written."""
    return f"{path}.unfinished"


def is_inside(path: str) -> bool:
    """Whether a path of a plan is relative, normalized and printable."""
    pure = PurePosixPath(path)
    is_relative = not pure.is_absolute() and ".." not in pure.parts
    is_text = bool(pure.parts) and path.isprintable()
    return is_relative and is_text and pure.as_posix() == path


def find_unknown_files(folder: Path, known: Collection[str]) -> list[str]:
    """Return the files and links in a build folder that are not in `known`, sorted.

    Ignores folders named __pycache__: programs and modules of a build are not run from
    there, and Python reads a cached file only for a source file beside the folder.
    Raises OSError.
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
    """Return the error for a file that differs from the plan's hash."""
    return BuildError(
        f"'{file}' was changed after it was compiled",
        hint="change the spec, not the build, and compile again",
    )


def check_parents(folder: Path, path: str) -> None:
    """Raise BuildError if a folder between the build and a file is a link."""
    for parent in _parents(folder / path, folder):
        _check_no_link(parent)


def _check_no_link(place: Path) -> None:
    if place.is_symlink():
        raise BuildError(f"'{place}' is a link, which a build folder must not contain")


def _parents(file: Path, folder: Path) -> list[Path]:
    """The folders between the build folder and the file, the outermost first."""
    between = file.relative_to(folder).parents
    return [folder / parent for parent in reversed(between) if parent.parts]
