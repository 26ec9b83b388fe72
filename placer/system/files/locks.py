"""Locks files and folders for one process at a time (flock)."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

PAUSE: Final = 0.05
"""Seconds between two attempts to lock a file."""


@contextmanager
def file_locked(descriptor: int, *, wait: float) -> Iterator[bool]:
    """Lock an open file or folder.

    Args:
        descriptor: the file; the caller closes it.
        wait: the longest time to wait for another process that has locked it, in seconds.

    Yields:
        False if the file system has no locks.

    Raises:
        BlockingIOError: if another process keeps the lock.
        OSError: if the file cannot be locked for another reason.
    """
    owner = os.getpid()
    has_locks = _lock(descriptor, time.monotonic() + wait)
    try:
        yield has_locks
    finally:
        # A forked process may have a copy of the descriptor, which would keep the lock. It must
        # not unlock the file itself.
        if os.getpid() == owner:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)


def lock_owner(descriptor: int) -> int | None:
    """Return the process on this machine that has locked an open file; None if unknown."""
    facts = os.fstat(descriptor)
    device = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5] == f"{device}:{facts.st_ino}":
            return int(fields[4]) if int(fields[4]) > 0 else None
    return None


def _lock(descriptor: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(PAUSE)
            continue
        except OSError as error:  # tolerate file systems without locks
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            return False
        return True
