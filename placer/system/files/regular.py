"""Opening files that a user names, but no pipes and devices, which may never end."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO


class UnreadableError(OSError):
    """A file that is not read, although the system would allow it."""

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
    """Open a regular file for reading; with `follow`, also through a symbolic link.

    Does not block on a pipe. Raises NotRegularError for a pipe, socket or device,
    IsADirectoryError, and other OSErrors.
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

    Raises TooLargeError if it has more than `limit` bytes, NotRegularError, and
    OSError.
    """
    with open_regular(path) as file:
        return read_at_most(file, limit)


def read_at_most(file: BinaryIO, limit: int) -> bytes:
    """Return the rest of an open file.

    Raises TooLargeError if that is more than `limit` bytes, and OSError.
    """
    content = file.read(limit + 1)
    if len(content) > limit:
        raise TooLargeError(limit)
    return content
