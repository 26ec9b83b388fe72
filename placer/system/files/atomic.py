"""Writes files atomically: a killed writer leaves neither incomplete nor temporary files."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from placer.system.files.regular import open_regular


@contextmanager
def atomic_file(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Return a context with a file to write to, which replaces `path` at its end.

    If the block raises, `path` is unchanged. At the end, the file and its name are on the
    disk. Until then the file has no name (O_TMPFILE), so the system removes it if the
    writer is killed. If the file system does not support this, the file is a hidden one
    next to `path`, which the next writer of `path` removes.

    Args:
        path: the path of the finished file.
        mode: its permissions.

    Raises:
        OSError: if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    _remove_stale(path)
    unnamed = _open_unnamed(path.parent)
    if unnamed is None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, 0o600)
    else:
        descriptor = unnamed
    try:
        with open(descriptor, "wb") as file:
            # While the lock is held, other writers do not remove this file as stale.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
            if unnamed is not None:
                _give_name(descriptor, temporary)
            temporary.replace(path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def mode_of(path: Path) -> int:
    """Return the mode of an existing file, or the default mode of a new file."""
    if path.exists():
        return path.stat().st_mode & 0o777
    return 0o666 & ~_umask()


def _umask() -> int:
    # `os.umask` can only read the mask by changing it for all threads of the process.
    with suppress(FileNotFoundError):  # Some systems have no /proc.
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "Umask":
                return int(value, 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_unnamed(folder: Path) -> int | None:
    """Open a new file without a name in a folder; None if the system does not support it."""
    try:
        descriptor = os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o600)
    except (OSError, AttributeError):  # Some systems have no O_TMPFILE.
        return None
    if Path(_descriptor_path(descriptor)).exists():
        return descriptor
    os.close(descriptor)
    return None


def _descriptor_path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _give_name(descriptor: int, path: Path) -> None:
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # Python calls linkat, which can follow the link in /proc, only with `src_dir_fd`.
        os.link(
            _descriptor_path(descriptor), path, src_dir_fd=folder, follow_symlinks=True
        )
    finally:
        os.close(folder)


def _remove_stale(path: Path) -> None:
    """Remove the temporary files of killed writers of `path`, which hold no lock."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9]+\.tmp")
    for file in path.parent.iterdir():
        if pattern.fullmatch(file.name):
            with suppress(OSError), open_regular(file, follow=False) as stale:
                fcntl.flock(stale, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.unlink(missing_ok=True)
