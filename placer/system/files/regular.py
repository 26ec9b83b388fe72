"""Opens files that a user names, but not pipes or devices, which may never end."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO


class UnreadableError(OSError):
    """A file that placer does not read, although the system would allow it."""

    def __str__(self) -> str:
        return str(self.strerror)


class NotRegularError(UnreadableError):
    """A path names a pipe, a socket or a device."""

    def __init__(self) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file")


class TooLargeError(UnreadableError):
    """A file has more bytes than its reader accepts."""

    def __init__(self, limit: int) -> None:
        super().__init__(errno.EFBIG, f"it has more than {limit} bytes")


def open_regular(path: Path, *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading. Never block on a pipe.

    Args:
        path: the path of the file.
        follow: whether `path` may be a symbolic link.

    Raises:
        NotRegularError: for a pipe, a socket or a device.
        IsADirectoryError: for a folder.
        OSError: if the file cannot be opened.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise NotRegularError
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(path: Path) -> None:
    """Raise the errors of `open_regular` for a path."""
    open_regular(path).close()


def read_regular(path: Path, limit: int) -> bytes:
    """Return all bytes of a regular file.

    Raises:
        TooLargeError: if the file has more than `limit` bytes.
        NotRegularError: for a pipe, a socket or a device.
        OSError: if the file cannot be read.
    """
    with open_regular(path) as file:
        return read_at_most(file, limit)


def read_at_most(file: BinaryIO, limit: int) -> bytes:
    """Return the rest of an open file.

    Raises:
        TooLargeError: if the rest has more than `limit` bytes.
        OSError: if the file cannot be read.
    """
    content = file.read(limit + 1)
    if len(content) > limit:
        raise TooLargeError(limit)
    return content
