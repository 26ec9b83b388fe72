"""A file that is written whole or not at all, and of which a killed writer leaves nothing."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path, mode: int) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` at the end of the block.

    If the block raises, `path` stays as it was. Until then the file has no name, so that
    the system removes it when its writer is killed; a file system that knows no such
    files gets a hidden one beside `path`, which the next writer of `path` removes.
    Raises OSError.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _remove_stale(path)
    nameless = _nameless(path.parent)
    if nameless is None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(beside, flags, 0o600)
    else:
        descriptor = nameless
    try:
        with open(descriptor, "wb") as file:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            if nameless is not None:
                _name(descriptor, beside)
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _nameless(folder: Path) -> int | None:
    """A new file in the folder without a name, or None where there is no such thing."""
    try:
        descriptor = os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o600)
    except (OSError, AttributeError):  # not every system has O_TMPFILE
        return None
    if Path(_link(descriptor)).exists():
        return descriptor
    os.close(descriptor)
    return None


def _link(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _name(descriptor: int, path: Path) -> None:
    """Give a file without a name this one."""
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # With a folder's descriptor Python calls linkat, which follows the link.
        os.link(_link(descriptor), path, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _remove_stale(path: Path) -> None:
    """Remove files of writers of `path` that are gone: nobody holds their locks."""
    ours = re.compile(rf"\.{re.escape(path.name)}\.[0-9]+\.tmp")
    for left in path.parent.iterdir():
        if not ours.fullmatch(left.name):
            continue
        try:
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            left.unlink(missing_ok=True)
        except OSError:
            continue
        finally:
            os.close(descriptor)
