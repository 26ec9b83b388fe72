"""The files of a build folder: read whole and checked, each written whole.

What lies in a build folder is run, so nothing of it is read through a link, nothing is
run that is not hashed in the plan, and nothing is written outside of it. Nor is
anything read that other users can change (`placer/files/owners.py`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from placer.errors import BuildError
from placer.files.owners import check_owner
from placer.files.regular import NotRegularError, open_regular, read_at_most

CACHE = "__pycache__"


def read_file(
    folder: Path, path: str, sha256: str | None = None, *, limit: int | None = None
) -> bytes:
    """The bytes of a file of a build, the very ones that were checked.

    Raises BuildError when the path leaves the folder, when the file is missing, has
    more than `limit` bytes, is reached through a link below the folder, can be changed
    by other users, or does not have the hash that is given.
    """
    if not is_inside(path):
        raise BuildError(f"'{path}' is outside of the build '{folder}'")
    file = folder / path
    try:
        for place in (*_parents(file, folder), file):
            _check_kept(place)
        with open_regular(file, follow=False) as opened:
            content = opened.read() if limit is None else read_at_most(opened, limit)
    except FileNotFoundError as error:
        raise BuildError(
            f"'{file}' is missing", hint="compile the spec again"
        ) from error
    except (NotRegularError, IsADirectoryError) as error:
        raise BuildError(
            f"'{file}' is not a file", hint="compile the spec again"
        ) from error
    except OSError as error:
        raise BuildError(f"'{file}' cannot be read: {error}") from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise edited(file)
    return content


def write_unfinished(folder: Path, path: str, content: bytes) -> None:
    """Write a file of a build beside its place, which `finish_file` puts it in.

    Only its owner may write it. Raises BuildError for a folder on the way that is a
    link, OSError.
    """
    file = folder / unfinished(path)
    check_parents(folder, path)
    file.parent.mkdir(mode=0o755, exist_ok=True)
    file.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(file, flags, 0o644), "wb") as opened:
        opened.write(content)


def finish_file(folder: Path, path: str) -> None:
    """Put a file that is written in its place. A link there is replaced, not followed.

    Raises BuildError for a folder on the way that is a link, OSError.
    """
    check_parents(folder, path)
    (folder / unfinished(path)).replace(folder / path)


def remove_file(folder: Path, path: str) -> None:
    """Take a file of a build away, and the folders that it leaves empty.

    Raises BuildError for a folder on the way that is a link, OSError.
    """
    check_parents(folder, path)
    file = folder / path
    file.unlink(missing_ok=True)
    for parent in reversed(_parents(file, folder)):
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()


def unfinished(path: str) -> str:
    """What a file is called while it is written."""
    return f"{path}.unfinished"


def is_inside(path: str) -> bool:
    """Whether a path of a plan is a plain relative one."""
    plain = PurePosixPath(path)
    parts_known = not plain.is_absolute() and ".." not in plain.parts
    is_text = bool(plain.parts) and path.isprintable()
    return parts_known and is_text and plain.as_posix() == path


def added(folder: Path, known: Collection[str]) -> list[str]:
    """The files and links in a build folder that are not known, in order.

    Folders named __pycache__ are passed over: no program and no module of a build is
    run from one, and Python looks into one only for a source file beside it.
    """
    found: list[str] = []

    def failed(error: OSError) -> None:
        raise error

    for at, folders, files in os.walk(folder, onerror=failed):
        links = [name for name in folders if (Path(at) / name).is_symlink()]
        folders[:] = [name for name in folders if name != CACHE]
        within = Path(at).relative_to(folder)
        found += [(within / name).as_posix() for name in (*files, *links)]
    return sorted(set(found) - set(known))


def edited(file: Path) -> BuildError:
    return BuildError(
        f"'{file}' is not as it was compiled",
        hint="change the spec, not the build, and compile again",
    )


def check_parents(folder: Path, path: str) -> None:
    """Raise BuildError for a folder on the way to a file that is a link."""
    for parent in _parents(folder / path, folder):
        if parent.is_symlink():
            raise _link(parent)


def _check_kept(place: Path) -> None:
    if place.is_symlink():
        raise _link(place)
    check_owner(place)


def _link(place: Path) -> BuildError:
    return BuildError(f"'{place}' is a link; a build folder holds plain files")


def _parents(file: Path, folder: Path) -> list[Path]:
    """The folders between the build's own and the file, from the outside in."""
    between = file.relative_to(folder).parents
    return [folder / parent for parent in reversed(between) if parent.parts]
