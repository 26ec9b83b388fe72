"""Files that a user names, opened only if they are files: no pipe, and no device, whose
end may never come."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO


class NotRegularError(OSError):
    """What a path names is a pipe, a socket or a device."""

    def __init__(self) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file")

    def __str__(self) -> str:
        return str(self.strerror)


class TooLargeError(OSError):
    """A file has more bytes than are read of it."""

    def __init__(self, limit: int) -> None:
        super().__init__(errno.EFBIG, f"it has more than {limit} bytes")

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(path: Path, *, follow: bool = True) -> BufferedReader:
    """A regular file, open for reading; a link to one, too, where they are followed.

    Never waits. Raises NotRegularError, OSError.
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
    """Raise as `open_regular` does."""
    open_regular(path).close()


def read_regular(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """All bytes of a regular file. Raises NotRegularError, TooLargeError, OSError."""
    with open_regular(path, follow=follow) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise TooLargeError(limit)
        return read_at_most(file, limit)


def read_at_most(file: BinaryIO, limit: int) -> bytes:
    """What is left of a file. Raises TooLargeError for more than `limit` bytes, OSError."""
    content = file.read(limit + 1)
    if len(content) > limit:
        raise TooLargeError(limit)
    return content
