"""Waits for a file descriptor to become readable."""

from __future__ import annotations

import select


def is_readable(fd: int, seconds: float | None) -> bool:
    """Wait until a descriptor is readable, for at most `seconds` if that is not None.

    Return whether it is readable. The end of a process makes its pidfd readable.
    """
    poll = select.poll()  # `select.select` rejects descriptors above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))
