"""Waits for a file descriptor to become readable, and raises the limit of open files."""

from __future__ import annotations

import resource
import select
from typing import Final

OTHER_FILES: Final = 512
"""Descriptors of a process for everything but the rows."""


def is_readable(fd: int, seconds: float | None) -> bool:
    """Return True if a descriptor becomes readable within `seconds`; None waits
    forever. The pidfd of a process becomes readable when the process ends."""
    poll = select.poll()  # `select.select` rejects descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))


def allow_open_files(count: int) -> None:
    """Let this process have `count` more open files, if the system allows so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
